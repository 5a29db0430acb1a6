"""Full-text search in the stored messages, by SQLite's FTS5. What it costs, and why so: docs/architecture.md.

Words are found in any case, with or without accents, and by their beginning. Scripts that put no spaces between words,
and parts of words that begin none, are found by looking through all of the text.
"""

import re
import sqlite3
import unicodedata
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
_MOST_RANKED = 5_000  # messages, the newest ones: to rank all that have a very frequent word takes longer than a scan
_AROUND = 40  # characters that are shown before and behind
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def search(connection: sqlite3.Connection, words: Sequence[str], limit: int) -> list[tuple[int, str]]:
    """Keys of at most ``limit`` conversations with a message that has all ``words``, and what is around them."""
    words = [word for text in words for word in text.replace("\0", " ").split()]
    if not words or limit <= 0:
        return []
    unspaced = any(map(_UNSPACED.search, words))
    best = ({} if unspaced else _by_words(connection, words, limit)) or _by_scan(connection, words, limit)
    text_of = "SELECT text FROM message WHERE key = ?"
    return [(key, _around(connection.execute(text_of, (found,)).fetchone()[0], words)) for key, found in best.items()]


def forget_removed(connection: sqlite3.Connection) -> None:
    """Have the index without the words of messages that are gone: until now they are only marked."""
    connection.execute("INSERT INTO found (found) VALUES ('optimize')")


def _by_words(connection: sqlite3.Connection, words: Sequence[str], limit: int) -> dict[int, int]:
    ranked = connection.execute(
        "SELECT key, conversation FROM"
        " (SELECT rowid AS of, rank AS worth FROM found WHERE found MATCH ? ORDER BY rowid DESC LIMIT ?)"
        " JOIN message ON key = of ORDER BY worth, key DESC",
        (" ".join(map(_term, words)), _MOST_RANKED),
    )
    return _first_of_each(ranked, limit)


def _term(word: str) -> str:
    quoted = '"' + word.replace('"', '""') + '"'
    return quoted + "*" * (len(word) >= _LEAST_BEGINNING)


def _by_scan(connection: sqlite3.Connection, words: Sequence[str], limit: int) -> dict[int, int]:
    likes = ["%" + re.sub(r"([\\%_])", r"\\\1", word) + "%" for word in words]
    condition = " AND ".join([r"text LIKE ? ESCAPE '\'"] * len(likes))
    newest = connection.execute(f"SELECT key, conversation FROM message WHERE {condition} ORDER BY key DESC", likes)
    return _first_of_each(newest, limit)


def _first_of_each(rows: Iterable[tuple[int, int]], limit: int) -> dict[int, int]:
    """Conversation -> its first message among ``rows``, for the first conversations."""
    best: dict[int, int] = {}
    for message, conversation in rows:
        best.setdefault(conversation, message)
        if len(best) == limit:
            break
    return best


def _around(text: str, words: Sequence[str]) -> str:
    """Where the first of ``words`` is, with what is before and behind; each of them there is marked.

    FTS5 has a function for this, which looks the words up in the whole index again for each message: 5 ms.
    """
    folded, any_word = _folded(text), "|".join(re.escape(_folded(word)) for word in sorted(words, key=len)[::-1])
    found = re.search(rf"\b(?:{any_word})", folded) or re.search(any_word, folded)
    start = max(0, (found.start() if found else 0) - _AROUND)
    stop = min(len(text), start + 3 * _AROUND)
    shown, at = "…" * (start > 0), start
    for match in re.finditer(any_word, folded[start:stop]):
        begin, end = start + match.start(), start + match.end()
        shown += f"{text[at:begin]}{OPEN}{text[begin:end]}{CLOSE}"
        at = end
    return shown + text[at:stop] + "…" * (stop < len(text))


class _Folding(dict[int, str]):
    """Each character as one without case and accents, so that places stay the same."""

    def __missing__(self, code: int) -> str:
        self[code] = folded = unicodedata.normalize("NFD", chr(code))[0].lower()[0]
        return folded


_FOLDING = _Folding()


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_FOLDING)
