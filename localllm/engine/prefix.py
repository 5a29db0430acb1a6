"""The prompt-prefix cache: what one process has read, another does not read again.

Finds the longest beginning of a prompt that is stored, gives it to the decoder, and stores what a turn has added. Which
tokens may be used again without changing an answer is told by ``slicing``; files are the business of ``prefix_store``.
"""

import collections
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from localllm.engine.decoder import Decoder
from localllm.engine.prefix_store import ROOT, Block, Kind, PrefixStore
from localllm.engine.slicing import landmarks, reusable

if TYPE_CHECKING:
    from concurrent.futures import Future

_BLOCK_TOKENS = 64
_READERS = 2  # hashing is what takes long, and one core hashes more slowly than llama.cpp copies
_MOST_HELD_BYTES = 1 << 30


class PrefixCache:
    """The stored prefixes of one decoder's model. One that does not write only finds what others have stored."""

    def __init__(self, decoder: Decoder, store: PrefixStore, writes: bool = True) -> None:
        self._decoder, self._store, self._writes = decoder, store, writes
        self._block = min(_BLOCK_TOKENS, decoder.block_tokens)
        self._held: dict[tuple[int, int], bytearray] = {}  # blocks that the decoder's memory may have forgotten later
        self._held_to = 0  # what comes behind this token is still to be held
        self._has_room: bool | None = None  # on the disk, for what is being stored; not known yet

    def rewound(self, length: int) -> None:
        """The decoder went back to its first ``length`` tokens: what is held of others is no longer true."""
        self._held = {(start, stop): payload for (start, stop), payload in self._held.items() if stop <= length}
        self._held_to = min(self._held_to, length)

    def restore(self, ids: Sequence[int], more_than: int, only_pure: bool) -> tuple[int, int] | None:
        """Give the decoder the longest beginning of ``ids`` that is stored, if it has more than so many tokens.

        Returns how many of the decoder's tokens are those of ``ids`` now, and how many are pure; None where nothing
        was touched.
        """
        chain, target = self._best(ids, only_pure)
        if target <= more_than:
            return None
        decoder = self._decoder
        decoder.rewind(0)
        self.rewound(0)
        pure, used = 0, []
        for block, payload in self._payloads(chain, ids):
            if payload is None or not decoder.restore(ids[block.start : block.stop], payload):
                target = reusable(pure, len(ids))
                break
            used.append(block)
            pure = block.stop if block.kind == "p" else pure
        self._store.touch(used)
        self._store.count_hit(used)
        there = decoder.rewind(min(target, len(decoder.tokens)))
        self._held_to = there
        return there, min(pure, there)

    def _best(self, ids: Sequence[int], only_pure: bool) -> tuple[list[Block], int]:
        """The blocks to restore, and how many of their tokens to use. The last token of a prompt is always computed."""
        before_last = ids[:-1]
        if self._decoder.whole_only:
            snapshots = self._store.snapshots(before_last)
            usable = [
                block
                for block in snapshots
                if (reusable(block.stop, len(ids)) == block.stop if block.kind == "p" else not only_pure)
            ]
            best = max(usable, key=lambda block: block.stop, default=None)
            return ([best], best.stop) if best else ([], 0)
        pure = self._store.pure(before_last)
        target = reusable(pure[-1].stop, len(ids)) if pure else 0
        conversation = [] if only_pure else self._store.conversation(before_last, pure)
        if conversation and conversation[-1].stop >= target:
            return conversation, conversation[-1].stop
        return [block for block in pure if block.start < target], target

    def _payloads(self, chain: Sequence[Block], ids: Sequence[int]) -> Iterator[tuple[Block, memoryview | None]]:
        """Read and check the next blocks, each with a core of its own, while one is restored.

        Memory of blocks that are restored is used again.
        """
        from concurrent.futures import ThreadPoolExecutor  # takes as long to load as a small block

        with ThreadPoolExecutor(_READERS) as readers:
            spare: list[bytearray] = []
            ahead: collections.deque[Future[memoryview | None]] = collections.deque()
            for index, block in enumerate(chain):
                for following in chain[index + len(ahead) : index + 1 + _READERS]:
                    ahead.append(readers.submit(self._store.read, following, ids, spare.pop() if spare else None))
                payload = ahead.popleft().result()
                yield block, payload
                if payload and isinstance(payload.obj, bytearray):
                    spare.append(payload.obj)

    # --- keeping -------------------------------------------------------------------------------------------------

    def hold(self, pure: int) -> None:
        """Copy what the decoder's memory may have forgotten when the turn ends; ``pure`` tokens are or will be pure.

        Of a sliding window, every block; where only whole states can be kept, those at the landmarks and the border.
        """
        if not self._writes:
            return
        decoder, end = self._decoder, len(self._decoder.tokens)
        if decoder.whole_only:
            if end in (*landmarks(pure), pure):
                self._hold(0, end)
        elif decoder.forgets:
            while (stop := _cut(self._held_to, pure, self._block)) <= end:
                self._hold(self._held_to, stop)
                self._held_to = stop

    def _hold(self, start: int, stop: int) -> None:
        if sum(map(len, self._held.values())) >= _MOST_HELD_BYTES:
            if not self._decoder.whole_only:
                return
            self._held.clear()  # the last one serves best
        if payload := self._decoder.save(start, stop):
            self._held[start, stop] = payload

    def keep(self, pure: int, answered: bool, text: str) -> None:
        """Store what the decoder holds and the disk does not: what is pure, and the conversation to its end.

        Without an answer there is no conversation: the end of a prompt alone is not what a longer one would read.
        ``text`` is what the tokens begin with, for whoever lists the cache. A failure stores less, and is no error.
        """
        if not self._writes:
            return
        tokens = tuple(self._decoder.tokens)
        self.rewound(len(tokens))
        self._has_room = None
        if self._decoder.whole_only:
            for stop in sorted({stop for _, stop in self._held} | {pure}):
                self._keep_whole(tokens[:stop], "p", text)
            if answered:
                self._keep_whole(tokens, "e", text)
        else:
            chain = self._store.pure(tokens[:pure])
            conversation = self._store.conversation(tokens, chain)
            self._store.touch(conversation or chain)
            end = chain[-1].stop if chain else 0
            key = self._keep_until(pure, pure, tokens, end, chain[-1].key if chain else ROOT, text)
            if conversation and conversation[-1].stop > pure:
                pure, key = conversation[-1].stop, conversation[-1].key
            if answered:
                self._keep_until(len(tokens), 0, tokens, pure, key, text)
        self._held.clear()
        self._held_to = len(tokens)

    def _keep_whole(self, tokens: Sequence[int], kind: Kind, text: str) -> None:
        self._has_room = None
        self._write(ROOT, tokens, 0, len(tokens), kind, text)

    def _keep_until(
        self, end: int, pure: int, tokens: Sequence[int], start: int, key: str | None, text: str
    ) -> str | None:
        """Store the tokens [start, end) behind the block ``key``; the key of the last block."""
        while key and start < end:
            stop = min(end, start + self._block)
            kind: Kind = "p" if stop <= pure else "e" if stop == len(tokens) else "d"
            key = self._write(key, tokens, start, stop, kind, "" if start else text)
            start = stop
        return key

    def _write(self, parent: str, tokens: Sequence[int], start: int, stop: int, kind: Kind, text: str) -> str | None:
        ids = tokens[start:stop]
        if not ids or (key := self._store.has(parent, ids, kind)):
            return key if ids else None
        payload = self._held.pop((start, stop), None) or self._decoder.save(start, stop)
        if not payload:
            return None
        if self._has_room is None:
            self._has_room = self._store.make_room(len(payload) * (len(tokens) - start) // len(ids))
        if not self._has_room:
            return None
        return self._store.write(parent, ids, kind, payload, text)


def _cut(start: int, pure: int, block: int) -> int:
    """Where a block that begins at ``start`` ends: no block is pure in part."""
    return pure if start < pure < start + block else start + block
