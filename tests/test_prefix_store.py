"""The store of the prefix cache: what is found is what was written, whatever happens to the files."""

import errno
import io
import os
import random
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.engine import prefix_store
from localllm.engine.prefix_store import ROOT, PrefixStore, described, entries, intact, remove, trim

BLOCK = 4
FINGERPRINT = "f" * 32


def payload_of(ids) -> bytes:
    return array("i", ids).tobytes() * 50


def store(folder: Path, budget_bytes: int = 10**8, fingerprint: str = FINGERPRINT) -> PrefixStore:
    return PrefixStore(folder, fingerprint, budget_bytes, {"model": "tiny"})


def write(one: PrefixStore, ids, kind="p", parent=ROOT, begin=0) -> str | None:
    """Store ``ids`` in blocks behind ``parent``."""
    key: str | None = parent
    for start in range(begin, len(ids), BLOCK):
        ids_of_block = ids[start : start + BLOCK]
        last = start + BLOCK >= len(ids)
        one.make_room(len(payload_of(ids_of_block)) + 1000)
        key = key and one.write(key, ids_of_block, "e" if kind == "d" and last else kind, payload_of(ids_of_block), "t")
    return key


def read(one: PrefixStore, ids) -> list[int]:
    """The tokens of the longest pure chain whose blocks can be read."""
    found: list[int] = []
    for block in one.pure(ids):
        payload = one.read(block, ids)
        if payload is None:
            break
        assert bytes(payload) == payload_of(ids[block.start : block.stop])
        found += ids[block.start : block.stop]
    return found


@given(
    texts=st.lists(st.lists(st.integers(0, 2), max_size=25), max_size=8),
    wanted=st.lists(st.integers(0, 2), max_size=30),
)
def test_the_longest_stored_beginning_is_found(tmp_path_factory, texts, wanted):
    """Of all texts that were stored: that which shares the most whole blocks."""
    one = store(tmp_path_factory.mktemp("prefix"))
    for text in texts:
        write(one, text)
    ends = [at for text in texts for at in (*range(BLOCK, len(text), BLOCK), len(text)) if text[:at] == wanted[:at]]
    assert read(one, wanted) == wanted[: max(ends, default=0)]


def test_what_two_texts_share_is_stored_once(tmp_path):
    one, shared = store(tmp_path), list(range(40))
    write(one, [*shared, 1, 2, 3, 4])
    before = sum(entry.tokens for _, entry in entries(tmp_path))
    write(one, [*shared, 5, 6, 7, 8])
    assert sum(entry.tokens for _, entry in entries(tmp_path)) == before + BLOCK


def test_a_conversation_is_found_at_its_end_only(tmp_path):
    """Its blocks are of use only as a whole; of two ends the further one is found."""
    one, prompt, answer = store(tmp_path), list(range(8)), [20, 21, 22, 23, 24, 25]
    key = write(one, prompt)
    end = write(one, [*prompt, *answer], "d", key, len(prompt))
    for wanted, length in (([*prompt, *answer, 30], 14), ([*prompt, *answer[:5], 30, 31, 32], 0), (prompt, 0)):
        chain = one.conversation(wanted, one.pure(wanted))
        assert (chain[-1].stop if chain else 0) == length
    write(one, [*prompt, *answer, 40, 41], "d", end, len(prompt) + len(answer))
    wanted = [*prompt, *answer, 40, 41, 42]
    assert one.conversation(wanted, one.pure(wanted))[-1].stop == 16


def test_models_do_not_see_each_other(tmp_path):
    ids = list(range(8))
    write(store(tmp_path), ids)
    assert not store(tmp_path, fingerprint="a" * 32).pure(ids)


def damages(content: bytes, draw: random.Random) -> dict[str, bytes]:
    """What a disk, a person or another program may make of a file."""
    at = draw.randrange(len(content))
    return {
        "empty": b"",
        "truncated": content[:at],
        "longer": content + b"\0",
        "a flipped bit": content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :],
        "zeros": bytes(len(content)),
        "garbage": draw.randbytes(len(content)),
        "another version": content.replace(b"localllm KV 1", b"localllm KV 2"),
    }


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_block_is_a_miss_and_is_removed(tmp_path, seed):
    """Every kind of damage; the blocks before it are still of use, and the right block can be stored again."""
    draw, ids = random.Random(seed), list(range(20))
    one = store(tmp_path)
    write(one, ids)
    victim = one.pure(ids)[draw.randrange(5)]
    content = victim.path.read_bytes()
    for name, damaged in damages(content, draw).items():
        victim.path.write_bytes(damaged)
        assert read(one, ids) == ids[: victim.start], name
        assert not victim.path.exists(), name
        write(one, ids)
        assert read(one, ids) == ids


def test_files_that_changed_places_are_a_miss(tmp_path):
    """A whole and intact block under the name of another one, also of another model."""
    one, other = store(tmp_path), store(tmp_path, fingerprint="a" * 32)
    ids, others = list(range(8)), list(range(8, 16))
    for each in (one, other):
        write(each, ids)
        write(each, others)
    (first, second), (foreign, _) = one.pure(ids), other.pure(ids)
    for wrong in (one.pure(others)[0].path, foreign.path, second.path):
        content = first.path.read_bytes()
        first.path.write_bytes(wrong.read_bytes())
        assert read(one, ids) == []
        first.path.write_bytes(content)
    assert read(one, ids) == ids


def test_strange_names_in_the_folders_are_ignored(tmp_path):
    one, ids = store(tmp_path), list(range(8))
    write(one, ids)
    folder = one.pure(ids)[0].path.parent
    for name in ("p", "-", "p-x.kv", "p999999999999-0.kv", "x4-0.kv", ".kv", "p-1-0.kv", "pnan-0.kv", "é.kv"):
        (folder / name).write_bytes(b"x")
        (tmp_path / name).write_bytes(b"x")
    (folder / "p4-0.kv").mkdir()
    assert read(one, ids) == ids
    list(entries(tmp_path))
    trim(tmp_path, 0)


@pytest.mark.skipif(os.getuid() == 0, reason="root may do anything")
def test_a_folder_that_may_not_be_used_is_a_miss(tmp_path):
    write(store(tmp_path), list(range(8)))
    tmp_path.chmod(0)
    try:
        one = store(tmp_path)
        assert one.pure(list(range(8))) == [] and write(one, list(range(4))) is None
    finally:
        tmp_path.chmod(0o700)


def test_a_file_where_the_folder_should_be_is_a_miss(tmp_path):
    """Nothing can be stored there, and nothing is raised."""
    blocked = tmp_path / "prefix"
    blocked.write_text("a file")
    one = store(blocked)
    assert one.pure([1, 2, 3, 4]) == [] and write(one, [1, 2, 3, 4]) is None
    assert list(entries(blocked)) == []


class FullDisk(io.FileIO):
    """Takes some bytes, and then no more."""

    def write(self, data) -> int:
        if self.tell() + len(data) > 300:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_a_disk_that_is_full_stores_nothing_and_leaves_nothing(tmp_path, monkeypatch):
    """Found out before, and in the middle of a file."""
    one, ids = store(tmp_path), list(range(8))
    nearly_full = SimpleNamespace(f_bavail=1000, f_frsize=4096)
    with monkeypatch.context() as full:
        full.setattr(os, "statvfs", lambda _: nearly_full)
        assert not one.make_room(10)
    with monkeypatch.context() as full:
        full.setattr(prefix_store, "open", lambda path, mode, opener: FullDisk(path, mode), raising=False)
        assert write(one, ids) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    write(one, ids)
    assert read(one, ids) == ids


def test_the_files_are_private(tmp_path):
    one = store(tmp_path / "prefix")
    write(one, list(range(8)))
    for path in (tmp_path / "prefix").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or path.parent == tmp_path / "prefix", path
    assert (tmp_path / "prefix").stat().st_mode & 0o077 == 0


def test_what_was_used_least_lately_goes_first_and_no_block_before_those_behind_it(tmp_path):
    """Whatever the clock did: what is left are whole chains."""
    one, draw = store(tmp_path), random.Random(1)
    texts = [[number, *(draw.randrange(100) for _ in range(19))] for number in range(10)]
    for text in texts:
        write(one, text)
    for index, text in enumerate(texts):
        for block in one.pure(text):
            os.utime(block.path, (index + draw.random(),) * 2)
    size = sum(entry.file_bytes for _, entry in entries(tmp_path))
    trim(tmp_path, size // 2)
    left = [len(read(one, text)) for text in texts]
    assert left == sorted(left) and left[-1] == 20 and left[0] == 0
    assert sum(left) == sum(entry.tokens for _, entry in entries(tmp_path))
    assert sum(entry.file_bytes for _, entry in entries(tmp_path)) <= size // 2


def test_the_budget_holds_whatever_is_written(tmp_path):
    budget = 20_000
    one, draw = store(tmp_path, budget), random.Random(2)
    for _ in range(100):
        write(one, [draw.randrange(1000) for _ in range(draw.randrange(40))])
        assert sum(entry.file_bytes for _, entry in entries(tmp_path)) <= budget
    assert any(True for _ in entries(tmp_path))


def test_what_is_larger_than_the_budget_is_not_stored(tmp_path):
    assert not store(tmp_path, 100).make_room(101) and store(tmp_path, 100).make_room(100)


def test_a_hit_is_counted_and_what_a_block_says_of_itself_is_told(tmp_path):
    one, ids = store(tmp_path), list(range(8))
    write(one, ids)
    for _ in range(3):
        one.count_hit(one.pure(ids))
    found = {entry.tokens: entry for _, entry in entries(tmp_path) if entry.parent == ROOT}
    assert found[4].hits == 3
    assert {"model": "tiny", "text": "t"}.items() <= (described(found[4]) or {}).items()
    assert intact(found[4])
    assert remove(found[4]) == found[4].file_bytes and not list(tmp_path.rglob("*.hits"))


_WRITER = """
import random, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_prefix_store import read, store, write
draw = random.Random({seed})
one = store(Path({folder!r}), {budget})
print("begun", flush=True)
while True:
    ids = [draw.randrange(3) for _ in range(draw.randrange(60))]
    write(one, ids)
    read(one, ids)
"""


@pytest.mark.slow
def test_writers_that_are_killed_leave_nothing_wrong(tmp_path):
    """200 of them, three at a time, at random moments: no wrong block, the budget holds, and the next one can write."""
    draw, budget = random.Random(3), 60_000
    for number in range(67):
        code = [
            _WRITER.format(tests=str(Path(__file__).parent), seed=3 * number + i, folder=str(tmp_path), budget=budget)
            for i in range(3)
        ]
        writers = [subprocess.Popen([sys.executable, "-c", each], stdout=subprocess.PIPE) for each in code]
        for writer in writers:
            assert writer.stdout and writer.stdout.readline() == b"begun\n"
        time.sleep(draw.random() * 0.05)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            writer.stdout.close()
    for _, entry in entries(tmp_path):
        assert not entry.key or intact(entry), entry
    assert sum(entry.file_bytes for _, entry in entries(tmp_path)) <= budget + 3 * 2000  # what three wrote at once
    one, ids = store(tmp_path, budget), [7] * 12
    write(one, ids)
    assert read(one, ids) == ids
    for path in tmp_path.rglob("*.part"):
        os.utime(path, (time.time() + 10**6,) * 2)  # a clock that went back
    trim(tmp_path, budget)
    assert not list(tmp_path.rglob("*.part"))
