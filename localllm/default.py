"""The default model: what the user has set, else what the first run has chosen, else the embedded one.

Knows the file that keeps a choice from call to call; how it is made is known to choosing.py.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from localllm import config
from localllm.settings import chosen_model

_MOST_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Choice:
    """A model's name, and its file where it must be there to be used: gigabytes are not fetched anew without a word.

    Without a file it is the embedded default, which stands in until a model that suits is on this disk. ``asked`` is
    True where nothing is to be offered any more: somebody has said no, or there was no hub. ``passed_over`` names the
    models on this disk that do not suit, so that they are not judged again.
    """

    model: str
    file: Path | None = None
    asked: bool = False
    passed_over: tuple[str, ...] = ()


def default_model() -> str:
    """The model to use where the user names none. Never chooses anew. Raises UsageError for a wrong setting."""
    if chosen := chosen_model():
        return chosen
    kept = last_choice()
    return kept.model if kept else config.DEFAULT_MODEL


def is_settled() -> bool:
    """Whether there is nothing to choose: the user has set a model, or the one that was chosen is still there."""
    if chosen_model():
        return True
    kept = last_choice()
    return kept is not None and kept.file is not None


def last_choice() -> Choice | None:
    """What was chosen; None where nothing was, where it cannot be read, and where the model's file is gone."""
    try:
        with _place().open("rb") as file:
            said = json.loads(file.read(_MOST_BYTES))
        path = Path(str(said["file"])) if said["file"] else None
        kept = Choice(str(said["model"]), path, bool(said["asked"]), tuple(map(str, said["passed_over"])))
        sound = path.is_file() if path else kept.model == config.DEFAULT_MODEL
    except (KeyError, OSError, RecursionError, TypeError, ValueError):
        return None
    return kept if sound else None


def keep(choice: Choice) -> None:
    """Remember a choice. A folder that cannot be written remembers nothing: then it is made again each time."""
    said = asdict(choice) | {"file": str(choice.file) if choice.file else None}
    place = _place()
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        written = place.with_name(f"{place.name}.{os.getpid()}")
        written.write_text(json.dumps(said), encoding="utf-8")
        written.replace(place)


def _place() -> Path:
    return config.data_dir() / "default.json"
