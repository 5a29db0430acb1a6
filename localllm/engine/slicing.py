"""How a prompt is cut into slices, so that what was read once can be used again without changing a bit.

A batch of another width computes its tokens in another order, and they differ in the last bits: but not between widths
of 96 and more. So all but the end of a prompt is read in slices that wide, and gives the same numbers however it was
cut and wherever reading resumed; the end, of 1 to 8 tokens, is a slice of its own that depends on the prompt's length
alone. What was read in wide slices from the beginning on is called *pure*. Measured in docs/prefix-cache.md.
"""

from collections.abc import Iterator, Sequence

WIDE = 96  # tokens: slices from here on give the same numbers
_TAIL = 8


def border(length: int) -> int:
    """How many of a prompt's ``length`` tokens are read in wide slices; 0 where there are too few for one."""
    wide = (length - 1) // _TAIL * _TAIL
    return wide if wide >= WIDE else 0


def reusable(pure: int, length: int) -> int:
    """How many of ``pure`` tokens that are there already a prompt of ``length`` tokens can begin with.

    What is left before the border has to fill a wide slice, or be nothing.
    """
    end = border(length)
    return end if pure >= end else min(pure, max(0, end - WIDE))


def pure_slices(start: int, length: int, most: int, marks: Sequence[int] = ()) -> Iterator[tuple[int, int]]:
    """The slices of a prompt of ``length`` tokens, of which the first ``start`` (see ``reusable``) are there.

    A slice ends at each of the ``marks`` too (see ``landmarks``), but for one too near to the start.
    """
    for end in (*(mark for mark in marks if mark - start >= WIDE), border(length)):
        while start < end:
            stop = min(end, start + most)
            if 0 < end - stop < WIDE <= most - WIDE:  # the last one would be narrow: leave more for it
                stop = end - WIDE
            yield start, stop
            start = stop
    yield from slices(start, length, most)


def landmarks(end: int) -> list[int]:
    """Where a memory that can only be saved as a whole is worth saving on the way to the border ``end``, in order.

    Another prompt goes on from the last of them up to which it agrees. Their distances to the border grow by a factor
    of four: so few copies serve, and at most some four times what differs is read anew.
    """
    marks, distance = list[int](), WIDE
    while end - distance >= WIDE:
        marks.append(end - distance)
        distance *= 4
    return marks[::-1]


def slices(start: int, stop: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut [start, stop) into slices of ``most`` tokens and what is left."""
    while start < stop:
        end = min(stop, start + most)
        yield start, end
        start = end
