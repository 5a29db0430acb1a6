"""How a proof is written: a property that scripts/check tries on a seeded sample, and scripts/prove at length.

A proof is a test that is marked with the proof's name and says how many cases it looked at::

    @pytest.mark.proof("every-cut")
    def test_any_cut_of_the_bytes_gives_the_same_text(record_property):
        @examples(full=1_000_000, sample=300)
        @given(st.text(), st.integers(0))
        def holds(text, cut): ...

        holds()
        record_property("cases", sample_size(full=1_000_000, sample=300))

Several tests may share a name; they are then one proof, and their cases are added up.
"""

import os

from hypothesis import settings

FULL = os.environ.get("LOCALLLM_PROOF") == "full"


def sample_size(full: int, sample: int) -> int:
    """How many cases to look at now."""
    return full if FULL else sample


def examples(full: int, sample: int) -> settings:
    """The same for hypothesis, as a decorator; the sample is the same at each run."""
    return settings(max_examples=sample_size(full, sample), derandomize=not FULL, deadline=None)
