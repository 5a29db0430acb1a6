"""What drafting was seen to cost, kept from one process to the next.

A file for each model, draft and way of running them. It only makes things faster sooner: a bad one is ignored.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from localllm.engine.costs import CostModel
from localllm.engine.drafters import ModelDrafter


def place(folder: Path, files: Sequence[Path], how: object) -> Path | None:
    """The file in ``folder`` for these models, run in this way as its repr tells it; None where a model is gone."""
    try:
        found = [(status.st_dev, status.st_ino, status.st_mtime_ns) for status in map(os.stat, files)]
    except OSError:
        return None
    return folder / f"{hashlib.sha256(repr((found, how)).encode()).hexdigest()[:32]}.json"


class CostMemory:
    """One such file in ``folder``."""

    def __init__(self, folder: Path, files: Sequence[Path], how: object) -> None:
        """``files`` are those of the models, ``how`` is all else that the costs depend on, as its repr tells it."""
        self._path = place(folder, files, how)
        self._known = self._read()

    def _read(self) -> dict[str, float]:
        if not self._path:
            return {}
        try:
            said = json.loads(self._path.read_text())
            known = {str(name): float(value) for name, value in said.items()}
        except (AttributeError, OSError, TypeError, ValueError, RecursionError):
            return {}
        return known if all(0.001 < value < 1000 for value in known.values()) else {}

    def cost_model(self) -> CostModel:
        """What is known of the target's steps."""
        shape = {int(name): value for name, value in self._known.items() if name.isdecimal()}
        return CostModel(shape, self._known.get("credit"))

    @property
    def draft(self) -> Mapping[str, float]:
        """What is known of the draft model: see ``ModelDrafter.known``."""
        return {name: value for name, value in self._known.items() if name.isalpha() and name != "credit"}

    def keep(self, cost: CostModel, drafter: ModelDrafter | None) -> None:
        """Remember what is known now. A folder that cannot be written remembers nothing."""
        known = {str(width): value for width, value in cost.shape.items() if width > 1}
        if drafter and drafter.loaded:
            known |= drafter.known
        known["credit"] = cost.credit
        known = {name: max(0.01, round(value, 3)) for name, value in known.items()}
        if not self._path or known == self._known:
            return
        self._known = known
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            written = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            written.write_text(json.dumps(known))
            written.replace(self._path)
