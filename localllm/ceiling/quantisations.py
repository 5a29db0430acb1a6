"""What a quantisation costs: bits per weight, by the names that people use. Pure arithmetic on names.

Knows the block sizes of ggml's types, and of the mixtures (``Q4_K_M``) the average over a dense model of 8 B
parameters. Knows nothing of quality: that has to be measured.
"""

import re
from collections.abc import Iterator
from typing import Final

from localllm.ceiling.expected import Precision

# ggml's block sizes in bits per weight; of mixtures the mean over Llama 3.1 8B as llama.cpp quantises it
BITS: Final[dict[str, float]] = {
    "F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q6_K": 6.56, "Q5_K_M": 5.7, "Q5_K_S": 5.57, "Q5_1": 6.0,
    "Q5_0": 5.5, "Q4_1": 5.1, "Q4_K_M": 4.87, "Q4_K_S": 4.66, "Q4_0": 4.55, "IQ4_NL": 4.55, "IQ4_XS": 4.32,
    "MXFP4": 4.25, "Q3_K_L": 4.3, "Q3_K_M": 4.0, "Q3_K_S": 3.65, "IQ3_M": 3.76, "IQ3_S": 3.66, "IQ3_XS": 3.5,
    "IQ3_XXS": 3.25, "Q2_K": 3.16, "Q2_K_S": 2.97, "IQ2_M": 2.93, "IQ2_S": 2.74, "IQ2_XS": 2.59, "IQ2_XXS": 2.38,
    "IQ1_M": 2.15, "IQ1_S": 2.0, "TQ2_0": 2.06, "TQ1_0": 1.69,
}  # fmt: skip
LADDER: Final = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K")  # what people choose among

_OTHER_NAMES = re.compile(r"^(?:UD-|I1-)|_(?:XL|P)$")  # dynamic and other makers' variants, of about the same size


def bits_per_weight(name: str) -> float | None:
    """Bits that a weight takes on average; None for a name that is not known."""
    return next((BITS[known] for known in _spellings(name) if known in BITS), None)


def precision(name: str) -> Precision:
    """How the weights are stored, as far as it matters to their reading."""
    known = next((known for known in _spellings(name) if known in BITS), "")
    if known in ("F32", "F16", "BF16"):
        return "16"
    if known in ("Q8_0", "Q6_K"):
        return "8"
    if known in ("Q4_0", "Q4_1", "MXFP4", "IQ4_NL"):
        return "4"
    return "k" if known.startswith(("Q4_K", "Q5_")) else "low"


def _spellings(name: str) -> Iterator[str]:
    """The name, and what it would be called in the table: ``UD-Q4_K_XL`` is about a Q4_K_M."""
    name = name.upper()
    yield name
    shorter = _OTHER_NAMES.sub("", _OTHER_NAMES.sub("", name))
    yield shorter
    yield f"{shorter}_M"
    yield name.rpartition("/")[2]  # "F16/MXFP4": by its experts
