"""What a model is put on: one device, several cards that share its layers, cards with the rest in main memory.

Knows how people write that. Decides which bytes lie where. Knows no model: it is given sizes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from localllm.ceiling import hardware
from localllm.ceiling.hardware import Hardware
from localllm.ceiling.learned import Learned
from localllm.errors import UsageError

RUNTIME_BYTES = 300 * 10**6  # what a GPU's driver and runtime take for themselves, about
MOST_CARDS = 64

_COUNT = re.compile(r"(?:(\d{1,4}) ?[x×] ?)?(.+?)(?: [x×*] ?(\d{1,4}))?", re.IGNORECASE)
_RAM = re.compile(r"(?:lp)?ddr\d\w?-(\d{3,5})(?:x(\d{1,2}))?", re.IGNORECASE)
_CHANNEL_BYTES = 8


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a model (from 0 to 1), and where it lies."""

    device: Hardware
    part: float


@dataclass(frozen=True, slots=True)
class Machine:
    """``cards`` share the layers by their memory; what does not fit goes to ``ram``, where there is one.

    ``learned`` is what was measured on it, where it is the machine that this runs on.
    """

    cards: tuple[Hardware, ...]
    ram: Hardware | None = None
    learned: Learned | None = None

    @property
    def name(self) -> str:
        """As a person would write it."""
        counted: dict[str, int] = {}
        for card in self.cards:
            counted[card.name] = counted.get(card.name, 0) + 1
        cards = " + ".join(f"{count} × {name}" if count > 1 else name for name, count in counted.items())
        return f"{cards} + {self.ram.name}" if self.ram else cards

    @property
    def first(self) -> Hardware:
        """The card, where it is one; the one that stands for all in a table."""
        return self.cards[0]

    @property
    def memory_bytes(self) -> int | None:
        """All memory of the cards; None where it is not known."""
        return _sum(card.memory_bytes for card in self.cards)

    @property
    def usable_bytes(self) -> int | None:
        """What of it programs may use; None where it is not known."""
        return _sum(card.usable_bytes for card in self.cards)

    @property
    def runtime_bytes(self) -> int:
        """What the runtime takes for itself on all cards."""
        return sum(RUNTIME_BYTES for card in self.cards if card.kind == "gpu")

    def fits(self, held_bytes: int) -> bool | None:
        """Whether it holds so much, with ``ram`` where there is one; None where that is not known."""
        if self.ram and self.ram.usable_bytes is None:
            return True
        usable = self.usable_bytes
        if usable is None:
            return None
        in_ram = self.ram.usable_bytes or 0 if self.ram else 0
        return held_bytes + self.runtime_bytes <= usable + in_ram

    def shares(self, held_bytes: int) -> list[Share]:
        """Which part of a model that takes ``held_bytes`` in all lies where."""
        usable = self.usable_bytes
        on_cards = 1.0
        if self.ram and usable is not None and held_bytes > 0:
            on_cards = min(1.0, max(0, usable - self.runtime_bytes) / held_bytes)
        sizes = [card.usable_bytes or 1 for card in self.cards]
        shares = [Share(card, on_cards * size / sum(sizes)) for card, size in zip(self.cards, sizes, strict=True)]
        return shares + ([Share(self.ram, 1 - on_cards)] if self.ram and on_cards < 1 else [])

    def check_sizes(self, held_bytes: int) -> None:
        """Refuse a card that is sold with several sizes of memory where a model of ``held_bytes`` tells them apart.

        It does where one size holds it and another does not, and where it would lie in other parts on other cards or
        in ``ram``. Raises UsageError.
        """
        unsettled = [card for card in self.cards if card.variants]
        largest = replace(self, cards=tuple(card.variants[-1] if card.variants else card for card in self.cards))
        differs = largest.fits(held_bytes) != self.fits(held_bytes)
        if unsettled and (differs or largest._parts(held_bytes) != self._parts(held_bytes)):
            raise hardware.ambiguous(unsettled[0].name, unsettled[0].variants)

    def _parts(self, held_bytes: int) -> list[float]:
        return [round(share.part, 6) for share in self.shares(held_bytes)]


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = [*sizes]
    return None if None in known else sum(size or 0 for size in known)


def parse(text: str) -> tuple[Hardware, ...]:
    """Cards as people write them: ``RTX 3090``, ``2 x RTX 3090``, ``RTX 4090 + RTX 3060``.

    Where a card is sold with several sizes of memory it has ``variants``, which ``Machine.check_sizes`` judges.
    Raises UsageError.
    """
    cards: list[Hardware] = []
    for part in text.split(" + "):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"{text!r} names no hardware", "write it as in: --gpu 'RTX 3090'")
        named = _named_with_number(part.strip())
        count, name = (1, part.strip()) if named else (int(match[1] or match[3] or 1), match[2])
        if not 1 <= count <= MOST_CARDS:
            raise UsageError(f"{part.strip()!r} is no number of cards, 1 to {MOST_CARDS}", "as in: 2 x RTX 3090")
        cards += [named or hardware.find_in_any_size(name)] * count
    return tuple(cards)


def _named_with_number(text: str) -> Hardware | None:
    """The device, where the whole text is its name: some have an x in them."""
    try:
        return hardware.find_in_any_size(text)
    except UsageError:
        return None


def parse_ram(text: str, memory_bytes: int | None = None) -> Hardware:
    """Main memory by its type and number of channels: ``ddr5-5600x2``. Raises UsageError.

    Bandwidth is transfers per second times 8 bytes for each channel of 64 bits.
    """
    match = _RAM.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no main memory", "give type and channels: ddr5-5600x2")
    channels = int(match[2] or 2)
    rate_gb_s = int(match[1]) * _CHANNEL_BYTES * channels / 1000
    if not 1 <= channels <= 24:
        raise UsageError(f"{channels} channels of memory are out of range", "give 1 to 24")
    name = f"{text.split('x')[0].upper()} × {channels}"
    return Hardware(name, "cpu", rate_gb_s, memory_bytes, "given", f"{match[1]} MT/s × 8 bytes × {channels} channels")
