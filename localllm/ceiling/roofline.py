"""The arithmetic of decoding: how fast memory can feed a model, and whether it holds it.

Pure functions of numbers. Knows no file, no device name and no clock. Rates are in 10⁹ bytes per second, as
spec sheets count; memory is sold in units of 2³⁰ bytes. Mixing the two is an error of 7.4 %.
"""

from dataclasses import dataclass

GB = 10**9


@dataclass(frozen=True, slots=True)
class Workload:
    """What one model asks of memory while it answers one user.

    All ``weights_bytes`` stay in memory, and ``streamed_bytes`` of them are read for each token. The KV cache
    of the tokens before it is kept (``kv_held_bytes``) and read (``kv_read_bytes``, less where layers look at a
    sliding window only).
    """

    weights_bytes: int
    streamed_bytes: int
    kv_held_bytes: int = 0
    kv_read_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """What memory must hold. Compute buffers are not counted: they depend on the runtime."""
        return self.weights_bytes + self.kv_held_bytes

    @property
    def read_bytes(self) -> int:
        """What is read for each token."""
        return self.streamed_bytes + self.kv_read_bytes


def ceiling_tok_s(bandwidth_gb_s: float, bytes_per_token: float) -> float:
    """Tokens per second that no decoder can exceed at batch 1: bandwidth ÷ bytes read per token.

    The memory side of the roofline model (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009).
    With one sequence each weight that is read serves one multiply-add (Pope et al., "Efficiently Scaling
    Transformer Inference", 2022), so memory binds; where compute does, the rate is lower and the bound holds.
    """
    return bandwidth_gb_s * GB / bytes_per_token


def fits(held_bytes: int, usable_bytes: int | None) -> bool | None:
    """Whether memory of ``usable_bytes`` holds that much; None where its size is not known."""
    return None if usable_bytes is None else held_bytes <= usable_bytes
