"""A file of the user's in the editor of their choice: what ``config edit`` and ``template edit`` have in common."""

from collections.abc import Callable
from pathlib import Path

from localllm import settings_file
from localllm.cli.answers import tell
from localllm.errors import UsageError
from localllm.terminal.editor import edited
from localllm.terminal.line_settings import is_terminal


def edit(target: Path, begun: str, check: Callable[[str], object], command: str) -> None:
    """Have ``target`` edited, or ``begun`` where there is no such file, and say what became of it.

    A text that ``check`` refuses (with UsageError) changes nothing: it is kept in a draft, with which the next edit by
    ``command`` goes on. Raises UsageError then, where somebody else has changed the file meanwhile, and without a
    terminal.
    """
    if not is_terminal():
        raise UsageError("an editor needs a terminal", f"in scripts write the file itself: {target}")
    draft = target.with_name(f"{target.name}.draft")
    before = settings_file.text(target)
    begun = before or begun
    after = edited(settings_file.text(draft) or begun, target.name).rstrip("\n") + "\n"
    try:
        check(after)
        if settings_file.text(target) != before:
            raise UsageError(f"{target} was changed by somebody else meanwhile")
    except UsageError as error:
        settings_file.write(after, draft)
        kept = f"nothing is changed; what you wrote is in {draft}, and {command} goes on with it"
        raise UsageError(error.message, "; ".join(filter(None, (error.hint, kept)))) from None
    if after != begun:
        settings_file.write(after, target)
    draft.unlink(missing_ok=True)
    tell("nothing is changed" if after == begun else f"it is in {target}")
