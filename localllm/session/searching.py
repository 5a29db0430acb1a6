"""Full-text search in the stored messages, by SQLite's FTS5. What it costs, and why so: docs/architecture.md.

Words are found in any case, with or without accents, and by their beginning. Scripts that put no spaces between words,
and parts of words that begin none, are found by looking through all of the text.
"""

import re
import sqlite3
from collections.abc import Iterable, Sequence

OPEN, CLOSE = "\x02", "\x03"  # around what was found; no terminal shows them, and ``safe`` takes them out
SCHEMA = """
CREATE VIRTUAL TABLE found USING fts5 (
    text, content = 'message', content_rowid = 'key', tokenize = 'unicode61 remove_diacritics 2'
);
CREATE TRIGGER message_said AFTER INSERT ON message BEGIN
    INSERT INTO found (rowid, text) VALUES (new.key, new.text);
END;
CREATE TRIGGER message_gone AFTER DELETE ON message BEGIN
    INSERT INTO found (found, rowid, text) VALUES ('delete', old.key, old.text);
END;
"""
_LEAST_BEGINNING = 3  # characters: what begins with fewer is too much to be of use
_AROUND = 40  # characters that are shown before and behind
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def search(connection: sqlite3.Connection, words: Sequence[str], limit: int) -> list[tuple[int, str]]:
    """Keys of at most ``limit`` conversations with a message that has all ``words``, and what is around them."""
    words = [word for text in words for word in text.replace("\0", " ").split()]
    if not words or limit <= 0:
        return []
    return (not any(map(_UNSPACED.search, words)) and _by_words(connection, words, limit)) or _by_scan(
        connection, words, limit
    )


def forget_removed(connection: sqlite3.Connection) -> None:
    """Have the index without the words of messages that are gone: until now they are only marked."""
    connection.execute("INSERT INTO found (found) VALUES ('optimize')")


def _by_words(connection: sqlite3.Connection, words: Iterable[str], limit: int) -> list[tuple[int, str]]:
    query = " ".join(_term(word) for word in words)
    ranked = connection.execute(
        "SELECT message.key, conversation FROM found JOIN message ON message.key = found.rowid"
        " WHERE found MATCH ? ORDER BY rank",
        (query,),
    )
    best = _first_of_each(ranked, limit)
    show = f"SELECT snippet(found, 0, '{OPEN}', '{CLOSE}', '…', 16) FROM found WHERE found MATCH ? AND rowid = ?"
    return [(key, connection.execute(show, (query, message)).fetchone()[0]) for key, message in best.items()]


def _term(word: str) -> str:
    quoted = '"' + word.replace('"', '""') + '"'
    return quoted + "*" * (len(word) >= _LEAST_BEGINNING)


def _by_scan(connection: sqlite3.Connection, words: Sequence[str], limit: int) -> list[tuple[int, str]]:
    likes = ["%" + re.sub(r"([\\%_])", r"\\\1", word) + "%" for word in words]
    condition = " AND ".join([r"text LIKE ? ESCAPE '\'"] * len(likes))
    newest = connection.execute(f"SELECT key, conversation FROM message WHERE {condition} ORDER BY key DESC", likes)
    best = _first_of_each(newest, limit)
    show = "SELECT text FROM message WHERE key = ?"
    return [
        (key, _around(connection.execute(show, (message,)).fetchone()[0], words[0])) for key, message in best.items()
    ]


def _first_of_each(rows: Iterable[tuple[int, int]], limit: int) -> dict[int, int]:
    """Conversation -> its first message among ``rows``, for the first conversations."""
    best: dict[int, int] = {}
    for message, conversation in rows:
        best.setdefault(conversation, message)
        if len(best) == limit:
            break
    return best


def _around(text: str, word: str) -> str:
    found = re.search(re.escape(word), text, re.IGNORECASE)
    start, stop = found.span() if found else (0, 0)
    before, behind = text[max(0, start - _AROUND) : start], text[stop : stop + _AROUND]
    cut_before, cut_behind = "…" * (start > _AROUND), "…" * (stop + _AROUND < len(text))
    return f"{cut_before}{before}{OPEN}{text[start:stop]}{CLOSE}{behind}{cut_behind}"
