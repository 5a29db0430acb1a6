"""Blocks of a KV cache on disk, found by the tokens that lead to them.

The folders are the index. A block lies in the folder of the block before it, under a name that is a hash of its own
tokens and of that block's name; so the way from one to the next is computed, blocks that prompts share are stored
once, and there is no index that could be damaged, locked or out of date. A block is written whole or not at all, and
is believed only after its size, its hash and every token have been compared. Whatever goes wrong is a miss.

Knows files. Knows neither models nor what is in a block.
"""

import contextlib
import hashlib
import heapq
import json
import os
import struct
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_MAGIC = b"localllm KV 1\n\0\0"
_LENGTH = struct.Struct("<I")
_HEAD_BYTES = len(_MAGIC) + 32  # and the SHA-256 of all that follows
_MOST_HEADER_BYTES = 1 << 16
_SUFFIX, _UNFINISHED = ".kv", ".part"
_STALE_S = 600.0  # an unfinished file that is older has lost its writer
_FREE_BYTES = 512 << 20  # of the disk, which are left to others
_MOST_BYTES = 4 << 30  # of one block

ROOT = "0" * 32  # the key that the first block follows
Kind = Literal["p", "d", "e"]
"""pure (see ``slicing``), decoded or narrow, and the same where a conversation ends."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block that is there by its name: the tokens [start, stop) of what was looked up."""

    path: Path
    parent: str
    key: str
    kind: Kind
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the store, as its name and the file system tell it."""

    path: Path
    parent: str
    key: str  # "" for an unfinished file
    tokens: int
    file_bytes: int
    used_s: float
    hits: int = 0


@dataclass(frozen=True, slots=True)
class _Way:
    """A block, and the way to it."""

    block: Block
    before: "_Way | None"


class PrefixStore:
    """The blocks of one model, loaded in one way; in a folder that it shares with others.

    ``fingerprint`` stands for all that shapes the numbers in a block; ``about`` is told of each block to whoever lists
    them. ``budget_bytes`` bounds the whole folder.
    """

    def __init__(self, folder: Path, fingerprint: str, budget_bytes: int, about: Mapping[str, str] = {}) -> None:
        self._root, self._folder = folder, folder / fingerprint
        self._fingerprint, self._about, self._budget_bytes = fingerprint, dict(about), budget_bytes

    # --- looking up ----------------------------------------------------------------------------------------------

    def pure(self, ids: Sequence[int]) -> list[Block]:
        """The longest chain of pure blocks that ``ids`` begins with."""
        return self._longest(ids, [], "p", "p")

    def conversation(self, ids: Sequence[int], pure: Sequence[Block]) -> list[Block]:
        """The longest chain that ``ids`` begins with and that ends where a conversation did; [] where none does.

        ``pure`` is what ``pure`` found: a conversation's own blocks follow one of these.
        """
        starts = [[*pure[:count]] for count in range(len(pure), -1, -1)]
        return max((self._longest(ids, start, "de", "e") for start in starts), key=_stop)

    def snapshots(self, ids: Sequence[int]) -> list[Block]:
        """Whole states, pure or at the end of a conversation, of as many tokens as ``ids`` begins with."""
        return list(self._children(None, ids, "pe"))

    def _longest(self, ids: Sequence[int], start: list[Block], kinds: str, ends: str) -> list[Block]:
        """The chain of these kinds behind ``start`` that reaches furthest, with an end of these kinds; or []."""
        best: _Way | None = None
        ways: list[_Way | None] = [None]
        while ways:
            way = ways.pop()
            last = way.block if way else start[-1] if start else None
            for block in self._children(last, ids, kinds):
                ways.append(_Way(block, way))
                if block.kind in ends and (best is None or block.stop > best.block.stop):
                    best = ways[-1]
        found = []
        while best:
            found.append(best.block)
            best = best.before
        return [*start, *reversed(found)] if found else []

    def _children(self, parent: Block | None, ids: Sequence[int], kinds: str) -> Iterator[Block]:
        """The blocks behind ``parent`` whose tokens are the next of ``ids``."""
        key, start = (parent.key, parent.stop) if parent else (ROOT, 0)
        try:
            names = os.listdir(self._folder / key)  # noqa: PTH208  (paths take long)
        except OSError:
            return
        for size in {name.partition("-")[0] for name in names}:
            kind, count = size[:1], size[1:]
            if kind not in kinds or not kind or not count.isdecimal() or len(count) > 6:
                continue
            stop = start + int(count)
            if not start < stop <= len(ids):
                continue
            path, child = self._place(key, ids[start:stop], kind)  # type: ignore[arg-type]
            if path.exists():
                yield Block(path, key, child, kind, start, stop)  # type: ignore[arg-type]

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self, block: Block, ids: Sequence[int], spare: bytearray | None = None) -> memoryview | None:
        """What was stored, where it is whole and of these tokens; else the file is removed and nothing is given.

        It is read into ``spare`` where that is large enough: new memory would take as long as the reading.
        """
        try:
            with block.path.open("rb") as file:
                size = min(os.fstat(file.fileno()).st_size, _MOST_BYTES)
                content = memoryview(spare if spare and len(spare) >= size else bytearray(size))[:size]
                whole = file.readinto(content) == size
        except (OSError, MemoryError):
            return None
        payload = self._checked(block, ids, content) if whole else None
        if payload is None:
            with contextlib.suppress(OSError):
                block.path.unlink()
        return payload

    def _checked(self, block: Block, ids: Sequence[int], content: memoryview) -> memoryview | None:
        tokens = array("i", ids[block.start : block.stop]).tobytes()
        parsed = _parsed(content)
        if parsed is None or hashlib.sha256(content[_HEAD_BYTES:]).digest() != content[len(_MAGIC) : _HEAD_BYTES]:
            return None
        header, at = parsed
        wanted = {"fingerprint": self._fingerprint, "parent": block.parent, "kind": block.kind}
        if any(header.get(name) != value for name, value in wanted.items()):
            return None
        return content[at + len(tokens) :] if content[at : at + len(tokens)] == tokens else None

    def touch(self, chain: Sequence[Block]) -> None:
        """The chain was of use: it is kept longer."""
        for block in reversed(chain):
            with contextlib.suppress(OSError):
                os.utime(block.path)

    def count_hit(self, chain: Sequence[Block]) -> None:
        """The chain was restored; its first block counts that, in a file with as many bytes."""
        with contextlib.suppress(OSError, IndexError), chain[0].path.with_suffix(".hits").open("ab") as hits:
            hits.write(b".")

    # --- writing -------------------------------------------------------------------------------------------------

    def has(self, parent: str, ids: Sequence[int], kind: Kind) -> str | None:
        """The key of this block where it is there already."""
        path, key = self._place(parent, ids, kind)
        return key if path.exists() else None

    def write(self, parent: str, ids: Sequence[int], kind: Kind, payload: bytes | bytearray, text: str) -> str | None:
        """Store a block behind ``parent``; its key, or None where it could not be stored."""
        path, key = self._place(parent, ids, kind)
        header = {"fingerprint": self._fingerprint, "parent": parent, "kind": kind, "text": text, **self._about}
        described = json.dumps(header).encode()
        tokens = array("i", ids).tobytes()
        size = _HEAD_BYTES + _LENGTH.size + len(described) + len(tokens) + len(payload)
        if len(described) > _MOST_HEADER_BYTES or size > _MOST_BYTES:
            return None
        digest = hashlib.sha256()
        parts = (_LENGTH.pack(len(described)), described, tokens, payload)
        for part in parts:
            digest.update(part)
        unfinished = path.with_name(f"{key}.{os.getpid()}{_UNFINISHED}")
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._root.chmod(0o700)
            for folder in reversed(path.relative_to(self._root).parents[:-1]):
                (self._root / folder).mkdir(exist_ok=True, mode=0o700)
            with open(unfinished, "wb", opener=_private) as file:
                for part in (_MAGIC, digest.digest(), *parts):
                    file.write(part)
            unfinished.replace(path)
        except OSError:
            return None
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
        return key

    def _place(self, parent: str, ids: Sequence[int], kind: Kind) -> tuple[Path, str]:
        key, size = _key(parent, ids, kind), f"{kind}{len(ids)}"
        folder = self._folder / parent if parent != ROOT else self._folder / parent / size  # many begin differently
        return folder / f"{size}-{key}{_SUFFIX}", key

    def make_room(self, size: int) -> bool:
        """Remove what was used least lately until ``size`` bytes more are within the budget, if they can be."""
        try:
            disk = os.statvfs(next(path for path in (self._root, *self._root.parents) if path.exists()))
        except (OSError, StopIteration):
            return False
        if size > self._budget_bytes or disk.f_bavail * disk.f_frsize < size + _FREE_BYTES:
            return False
        trim(self._root, self._budget_bytes - size)
        return True


def entries(folder: Path) -> Iterator[tuple[str, Entry]]:
    """All files of a store, with their fingerprints. Folders that cannot be read hold nothing."""
    for fingerprint in _listed(folder):
        for parent in _listed(Path(fingerprint.path)):
            within = _listed(Path(parent.path))
            folders = [Path(file.path) for file in within if parent.name == ROOT] or [Path(parent.path)]
            for files in map(_listed, folders):
                hits = {file.name: file for file in files if file.name.endswith(".hits")}
                found = (
                    _entry(file, parent.name, hits.get(file.name.removesuffix(_SUFFIX) + ".hits")) for file in files
                )
                yield from ((fingerprint.name, entry) for entry in found if entry)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _entry(file: os.DirEntry[str], parent: str, hits: os.DirEntry[str] | None) -> Entry | None:
    size, _, rest = file.name.partition("-")
    try:
        status = file.stat()
        counted = hits.stat().st_size if hits else 0
    except OSError:
        return None
    if file.name.endswith(_SUFFIX) and size[1:].isdecimal():
        key = rest.removesuffix(_SUFFIX)
        return Entry(Path(file.path), parent, key, int(size[1:]), status.st_size, status.st_mtime, counted)
    if file.name.endswith(_UNFINISHED):
        return Entry(Path(file.path), parent, "", 0, status.st_size, status.st_mtime)
    return None


@dataclass(slots=True)
class _Tree:
    """How many blocks follow each one, for removing the last ones first."""

    every: dict[tuple[str, str], Entry] = field(default_factory=dict)
    followers: dict[tuple[str, str], int] = field(default_factory=dict)


def trim(folder: Path, budget_bytes: int) -> None:
    """Remove blocks until the folder holds ``budget_bytes``: those that nothing follows, least lately used first."""
    tree, unfinished, total = _Tree(), [], 0
    for fingerprint, entry in entries(folder):
        total += entry.file_bytes
        if entry.key:
            tree.every[fingerprint, entry.key] = entry
            parent = (fingerprint, entry.parent)
            tree.followers[parent] = tree.followers.get(parent, 0) + 1
        else:
            unfinished.append(entry)
    now_s = time.time()
    for entry in unfinished:
        if not 0 <= now_s - entry.used_s < _STALE_S or total > budget_bytes:
            total -= remove(entry)
    if total <= budget_bytes:
        return
    last = [(entry.used_s, name) for name, entry in tree.every.items() if not tree.followers.get(name)]
    heapq.heapify(last)
    while last and total > budget_bytes:
        _, name = heapq.heappop(last)
        entry = tree.every[name]
        total -= remove(entry)
        parent = (name[0], entry.parent)
        tree.followers[parent] -= 1
        if not tree.followers[parent] and parent in tree.every:
            heapq.heappush(last, (tree.every[parent].used_s, parent))


def remove(entry: Entry) -> int:
    """Remove a file, and its folder where that was the last; the bytes that are free now."""
    with contextlib.suppress(OSError):
        entry.path.unlink()
        with contextlib.suppress(OSError):
            entry.path.with_suffix(".hits").unlink(missing_ok=True)
            for folder in list(entry.path.parents)[: 3 if entry.parent == ROOT else 2]:
                folder.rmdir()
    return 0 if entry.path.exists() else entry.file_bytes


def described(entry: Entry) -> Mapping[str, str] | None:
    """What a block says of itself (``model``, ``text`` …), unverified; None where it cannot be read."""
    try:
        with entry.path.open("rb") as file:
            parsed = _parsed(memoryview(file.read(_HEAD_BYTES + _LENGTH.size + _MOST_HEADER_BYTES)))
    except OSError:
        return None
    return parsed and {str(name): str(value) for name, value in parsed[0].items()}


def intact(entry: Entry) -> bool:
    """Whether a block is what was written, as far as that can be told without its tokens."""
    try:
        content = entry.path.read_bytes()
    except (OSError, MemoryError):
        return False
    parsed = _parsed(memoryview(content))
    if parsed is None or hashlib.sha256(content[_HEAD_BYTES:]).digest() != content[len(_MAGIC) : _HEAD_BYTES]:
        return False
    header, at = parsed
    ids = array("i", content[at : at + 4 * entry.tokens])
    return len(ids) == entry.tokens and _key(entry.parent, ids, header.get("kind", "")) == entry.key


def _parsed(content: memoryview) -> tuple[dict[str, str], int] | None:
    """The header of a file, and where its tokens begin."""
    at = _HEAD_BYTES + _LENGTH.size
    if len(content) < at or content[: len(_MAGIC)] != _MAGIC:
        return None
    (size,) = _LENGTH.unpack(content[_HEAD_BYTES:at])
    if size > _MOST_HEADER_BYTES or at + size > len(content):
        return None
    try:
        header = json.loads(bytes(content[at : at + size]))
    except (ValueError, RecursionError):
        return None
    return (header, at + size) if isinstance(header, dict) else None


def _key(parent: str, ids: Sequence[int], kind: str) -> str:
    return hashlib.blake2b(parent.encode() + kind.encode() + array("i", ids).tobytes(), digest_size=16).hexdigest()


def _stop(chain: Sequence[Block]) -> int:
    return chain[-1].stop if chain else 0


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
