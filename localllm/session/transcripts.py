"""The conversations on this disk: one SQLite file, alone in knowing SQL.

A conversation is what it is now, with its messages in their order; what no longer fits into a context may stay as
``in_context`` False. Each write is one transaction, so a process that is killed leaves whole turns. Several processes
may use the file at once. Knows no engine and no terminal.
"""

import array
import os
import random
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from localllm.errors import TranscriptError, UsageError
from localllm.session import searching
from localllm.values import Message

FILE_NAME = "conversations.db"
_APPLICATION_ID = 0x6C6C6D31  # "llm1": whose file this is
_VERSION = 1
_FAR_S = 1e11  # no date is beyond, in seconds since 1970
_BUSY_S = 5.0  # how long to wait for another process's write
_ID_LETTERS, _ID_LENGTH = "abcdefghjkmnpqrstuvwxyz23456789", 6  # without those that look alike
_SCHEMA = f"""
CREATE TABLE conversation (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, model TEXT NOT NULL, system TEXT NOT NULL,
    created_s REAL NOT NULL, updated_s REAL NOT NULL, writes INTEGER NOT NULL DEFAULT 1
);
CREATE INDEX newest ON conversation (updated_s);
CREATE TABLE message (
    key INTEGER PRIMARY KEY, conversation INTEGER NOT NULL REFERENCES conversation ON DELETE CASCADE,
    position REAL NOT NULL, in_context INTEGER NOT NULL DEFAULT 1,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant')), text TEXT NOT NULL, reasoning TEXT NOT NULL,
    token_ids BLOB NOT NULL, UNIQUE (conversation, position)
);
{searching.SCHEMA}
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
"""
_SUMMARY = """
SELECT id, title, model, system, created_s, updated_s, writes,
       (SELECT count(*) FROM message WHERE message.conversation = conversation.key) FROM conversation
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a conversation is about. Times are seconds since 1970; ``model`` is a reference as for ``-m``.

    ``writes`` counts the changes, so that one by another process is noticed.
    """

    id: str
    title: str
    model: str
    system: str
    created_s: float
    updated_s: float
    writes: int
    messages: int


@dataclass(frozen=True, slots=True)
class Row:
    """A message in its place. ``in_context`` is False for what was said but is not given to the model any more."""

    key: int
    position: float
    message: Message
    in_context: bool = True


@dataclass(frozen=True, slots=True)
class Conversation:
    """A stored conversation with all its messages."""

    summary: Summary
    rows: tuple[Row, ...]

    @property
    def messages(self) -> list[Message]:
        """What the model sees of it, but for the system prompt."""
        return [row.message for row in self.rows if row.in_context]


@dataclass(frozen=True, slots=True)
class Edit:
    """What changes in a conversation: keys of rows that go or leave the context, and new messages with their places."""

    taken_back: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    new: tuple[tuple[float, Message], ...] = ()


class Transcripts:
    """The stored conversations. A context manager: leaving it closes the file."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the file in ``folder`` for writing, making both where they are missing, for nobody else to read.

        Raises TranscriptError where that cannot be.
        """
        path = folder / FILE_NAME
        with _told(path):
            _make_private(folder, path)
            connection = _connected(path, "rw")
            try:
                _prepare(path, connection)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection)

    @classmethod
    def open_to_read(cls, folder: Path) -> Self:
        """Open the file in ``folder`` as it is; one that is not there has no conversations. Raises TranscriptError."""
        path = folder / FILE_NAME
        with _told(path):
            if not path.exists():
                connection = sqlite3.connect(":memory:", isolation_level=None)
                _prepare(path, connection)
                return cls(path, connection)
            with suppress(sqlite3.OperationalError):
                return cls(path, _checked(path, _connected(path, "rw")))
            with suppress(sqlite3.OperationalError):  # a file or a folder in which nothing can be written
                return cls(path, _checked(path, _connected(path, "ro")))
            return cls(path, _checked(path, _connected(path, "ro&immutable=1")))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- reading -------------------------------------------------------------------------------------------------

    def newest(self, limit: int | None = None) -> list[Summary]:
        """The conversations, the last one first."""
        with _told(self.path):
            rows = self._connection.execute(
                f"{_SUMMARY} ORDER BY updated_s DESC, key DESC LIMIT ?", (-1 if limit is None else limit,)
            )
            return [_summary(row) for row in rows]

    def count(self) -> int:
        """How many conversations there are."""
        with _told(self.path):
            found: int = self._connection.execute("SELECT count(*) FROM conversation").fetchone()[0]
            return found

    def find(self, prefix: str) -> Conversation:
        """The conversation whose id begins so. Raises UsageError where there is none, or more than one."""
        prefix = prefix.strip().lower()
        with _told(self.path):
            rows = self._connection.execute(
                "SELECT id FROM conversation WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT 4", (len(prefix), prefix)
            ).fetchall()
        ids = [id for (id,) in rows]
        if not prefix or not ids:
            raise _no_such(prefix)
        if len(ids) > 1 and prefix not in ids:
            raise UsageError(
                f"{prefix!r} may be {', '.join(ids[:3])}{' or another' * (len(ids) > 3)}", "give more of it"
            )
        return self.load(prefix if prefix in ids else ids[0])

    def load(self, id: str) -> Conversation:
        """The conversation with exactly this id. Raises UsageError where there is none."""
        with _told(self.path), _transaction(self._connection, "DEFERRED"):
            execute = self._connection.execute
            found = execute(f"{_SUMMARY} WHERE id = ?", (id,)).fetchone()
            if found is None:
                raise _no_such(id)
            rows = execute(
                "SELECT key, position, in_context, role, text, reasoning, token_ids FROM message"
                " WHERE conversation = (SELECT key FROM conversation WHERE id = ?) ORDER BY position",
                (id,),
            )
            return Conversation(_summary(found), tuple(_row(row) for row in rows))

    def search(self, words: Sequence[str], limit: int) -> list[tuple[Summary, str]]:
        """Conversations with a message that has all ``words``, the best first, each with the place.

        What was found is between ``searching.OPEN`` and ``CLOSE``. Of a word that ends in the query, more may follow.
        """
        with _told(self.path):
            found = searching.search(self._connection, words, limit)
            return [
                (_summary(self._connection.execute(f"{_SUMMARY} WHERE key = ?", (key,)).fetchone()), place)
                for key, place in found
            ]

    # --- writing -------------------------------------------------------------------------------------------------

    def begin(self, title: str, model: str, system: str, messages: Sequence[Message]) -> Conversation:
        """Store a new conversation."""
        new = [(float(position), message) for position, message in enumerate(messages)]
        with _told(self.path), _transaction(self._connection):
            now_s, id = time.time(), self._free_id()
            key = self._connection.execute(
                "INSERT INTO conversation (id, title, model, system, created_s, updated_s) VALUES (?, ?, ?, ?, ?, ?)",
                (id, title, model, system, now_s, now_s),
            ).lastrowid
            rows = self._insert(key or 0, new)
        return Conversation(Summary(id, title, model, system, now_s, now_s, 1, len(rows)), rows)

    def change(self, wanted: Summary, edit: Edit) -> tuple[Row, ...] | Literal["gone", "changed"]:
        """Give a conversation the title, model and system prompt that are ``wanted``, and edit its messages.

        Returns the new rows. Nothing is stored where the conversation is "gone", or where another process has
        "changed" it since ``wanted.writes``. A conversation without any message left is removed.
        """
        with _told(self.path), _transaction(self._connection):
            execute = self._connection.execute
            found = execute("SELECT key, writes FROM conversation WHERE id = ?", (wanted.id,)).fetchone()
            if found is None:
                return "gone"
            key, writes = found
            if writes != wanted.writes:
                return "changed"
            for row in edit.taken_back:
                execute("DELETE FROM message WHERE key = ?", (row,))
            for row in edit.dropped:
                execute("UPDATE message SET in_context = 0 WHERE key = ?", (row,))
            rows = self._insert(key, edit.new)
            execute(
                "UPDATE conversation SET title = ?, model = ?, system = ?, updated_s = ?, writes = ? WHERE key = ?",
                (wanted.title, wanted.model, wanted.system, time.time(), writes + 1, key),
            )
            if not execute("SELECT 1 FROM message WHERE conversation = ?", (key,)).fetchone():
                execute("DELETE FROM conversation WHERE key = ?", (key,))
            return rows

    def remove(self, ids: Iterable[str]) -> None:
        """Remove conversations, and every trace of their text from the file."""
        with _told(self.path):
            with _transaction(self._connection):
                self._connection.executemany("DELETE FROM conversation WHERE id = ?", [(id,) for id in ids])
                searching.forget_removed(self._connection)
            self._connection.execute("VACUUM")
            # What was written before may still be in the log beside the file.
            busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise TranscriptError(
                "removed, but traces of the text stay in the file while another program reads it",
                "they go when the last localllm that uses the history ends",
            )

    def _insert(self, conversation: int, new: Sequence[tuple[float, Message]]) -> tuple[Row, ...]:
        rows = []
        for position, message in new:
            values = (conversation, position, message.role, message.text, message.reasoning, _packed(message.token_ids))
            key = self._connection.execute(
                "INSERT INTO message (conversation, position, role, text, reasoning, token_ids)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                values,
            ).lastrowid
            rows.append(Row(key or 0, position, message))
        return tuple(rows)

    def _free_id(self) -> str:
        while True:
            id = "".join(random.choices(_ID_LETTERS, k=_ID_LENGTH))
            if not self._connection.execute("SELECT 1 FROM conversation WHERE id = ?", (id,)).fetchone():
                return id


def _no_such(id: str) -> UsageError:
    return UsageError(f"there is no conversation {id!r}", "all of them: localllm history list")


def _summary(columns: Sequence[object]) -> Summary:
    """A summary out of columns that may hold anything, as a damaged file may."""
    match columns:
        case (
            str(id),
            str(title),
            str(model),
            str(system),
            float(created_s),
            float(updated_s),
            int(writes),
            int(count),
        ):
            if 0 <= created_s < _FAR_S and 0 <= updated_s < _FAR_S:
                return Summary(id, title, model, system, created_s, updated_s, writes, count)
    raise sqlite3.DatabaseError("a conversation is not what was stored")


def _row(columns: Sequence[object]) -> Row:
    match columns:
        case (
            int(key),
            float(position),
            int(in_context),
            "user" | "assistant" as role,
            str(text),
            str(why),
            bytes(ids),
        ):
            return Row(key, position, Message(role, text, _unpacked(ids), why), bool(in_context))
    raise sqlite3.DatabaseError("a message is not what was stored")


def _packed(ids: Sequence[int]) -> bytes:
    """Four bytes each, little-endian."""
    packed = array.array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpacked(data: bytes) -> tuple[int, ...]:
    ids = array.array("i", data[: len(data) // 4 * 4])
    if sys.byteorder == "big":
        ids.byteswap()
    return tuple(ids)


# --- the file ----------------------------------------------------------------------------------------------------


def _make_private(folder: Path, path: Path) -> None:
    """Have folder and file, readable for this user alone; SQLite gives its other files the same mode."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid != os.geteuid():  # without a HOME it is below /tmp, where anybody may have made it
        raise TranscriptError(f"{folder} belongs to somebody else", "set HOME or XDG_DATA_HOME to a folder of yours")
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    for one in (folder, path):
        if one.stat().st_mode & 0o077:
            one.chmod(one.stat().st_mode & 0o700)


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    # One thread at a time uses it, but not always the same one.
    connection = sqlite3.connect(address, _BUSY_S, uri=True, isolation_level=None, check_same_thread=False)
    try:
        for setting in ("foreign_keys = ON", "secure_delete = ON", "cell_size_check = ON"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    """Have the tables, and the journal that lets others read while one writes, where the file system can have it."""
    with suppress(sqlite3.OperationalError):  # another process is making the same change at this moment
        connection.execute("PRAGMA journal_mode = WAL")
    if _versions(connection) == (0, 0):
        with _transaction(connection):
            if _versions(connection) == (0, 0) and not connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
                for statement in _statements(_SCHEMA):
                    connection.execute(statement)
    _checked(path, connection)


def _checked(path: Path, connection: sqlite3.Connection) -> sqlite3.Connection:
    application, version = _versions(connection)
    if application == _APPLICATION_ID and version == _VERSION:
        return connection
    connection.close()
    if application != _APPLICATION_ID:
        raise TranscriptError(f"{path} is not a history of localllm", "move it away")
    raise TranscriptError(f"{path} was written by a newer localllm", "use that one, or move the file away")


def _versions(connection: sqlite3.Connection) -> tuple[int, int]:
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    return application, version


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: ``executescript`` would end the transaction first."""
    statement = ""
    for part in script.split(";"):
        statement += f"{part};"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@contextmanager
def _transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # some errors have ended it already
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say in a line what SQLite and the system complain about."""
    try:
        yield
    except sqlite3.OperationalError as error:
        hint = "try again" if "locked" in str(error) else "check the disk and the permissions"
        raise TranscriptError(f"the history {path} cannot be used: {error}", hint) from error
    except sqlite3.Error as error:
        raise TranscriptError(
            f"the history {path} is damaged: {error}", "move it away, and a new one begins"
        ) from error
    except UnicodeEncodeError as error:
        raise TranscriptError("a message holds characters that no file can hold", "write it without them") from error
    except OSError as error:
        raise TranscriptError(f"the history {path} cannot be used: {error.strerror}", "check the path") from error
