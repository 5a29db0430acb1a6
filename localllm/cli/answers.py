"""What ``ask`` writes of an answer, where to, and which exit code that makes.

Into a pipe goes the answer and nothing else; of one that was to have a form and was cut, nothing.
"""

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.errors import EXIT_CODES
from localllm.terminal.safe import escaped, one_line
from localllm.values import Constraint, Event, ModelInfo, Text, TurnEnd

if TYPE_CHECKING:
    from localllm.session.extract import Which
    from localllm.terminal.render import View


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer is to be written. ``extract``: only a code block of it; ``constraint``: what it has to be."""

    view: "View"
    as_json: bool = False
    extract: "Which | None" = None
    constraint: Constraint | None = None

    @property
    def hold_unopened(self) -> bool:
        """Whether reasoning that its model forgot to mark must not get out."""
        return not (self.as_json or self.view.reasoning)


def write(events: Iterator[Event], form: Form) -> TurnEnd:
    """Stream the answer, or write it when it is whole; of one that goes into JSON, nothing yet."""
    from localllm.terminal import render

    view, is_held = form.view, bool(form.constraint) and not sys.stdout.isatty()
    if not (form.as_json or form.extract or is_held):
        return render.show(map(_escaped, events) if form.constraint else events, view)
    end = render.collect(events, view)
    if form.as_json:
        return end
    if is_held:
        if end.reason == "stop":
            render.put(escaped(end.message.text), view)
    else:
        code = code_of(end, form)
        render.put(end.message.text if code is None else code, view)
    return end


def write_json(end: TurnEnd, form: Form, model: str, dropped_tokens: int, conversation: str | None) -> None:
    """Write the object of ``--json``."""
    from localllm.terminal import render, stats_view

    found = stats_view.as_json(end, model, dropped_tokens) | {"conversation": conversation}
    render.put(render.dumps(found | {"extracted": code_of(end, form)} if form.extract else found), form.view)


def code_of(end: TurnEnd, form: Form) -> str | None:
    """The code block that was asked for, if there is one."""
    from localllm.session.extract import code_block

    block = code_block(end.message.text, form.extract) if form.extract else None
    return block.code if block else None


def destroyed(end: TurnEnd) -> list[str]:
    """What in the command that was asked for destroys something."""
    from localllm.session.extract import code_block
    from localllm.session.shell import destroys

    block = code_block(end.message.text, "command")
    return destroys(block.code) if block else []


def report(end: TurnEnd, form: Form, info: ModelInfo, usage: bool, extract: "Which | None") -> None:
    """What must be said, and with ``-u`` what can be said, on stderr. ``extract`` is what the user asked for."""
    from localllm.terminal import stats_view

    if cut := stats_view.ending(end):
        tell(cut)
    elif form.constraint and end.reason == "length":
        tell("--max-tokens came before the end: the answer is cut")
    if form.constraint and end.reason == "context":
        tell("a schema can bound what is written: maxLength, maxItems, additionalProperties: false")
    elif end.reason == "length" and end.message.reasoning and not end.message.text:
        tell("--max-tokens came before the end of the reasoning: there is no answer")
    if extract:
        from localllm.session.extract import code_block

        block = code_block(end.message.text, extract)
        if end.message.text and not block:
            tell("the answer has no code block, so all of it is given")
        if block and not block.closed:
            tell("the code block has no end: the answer may be cut")
    if form.extract == "command" and (lost := destroyed(end)):
        tell(f"it removes or overwrites ({', '.join(lost)}): read it before you run it")
    if usage:
        tell(stats_view.stats_line(end))
        tell(stats_view.model_line(info, end.stats))


def exit_code(end: TurnEnd, form: Form) -> int:
    """As the answer ended; where it was to have a form, one that ``--max-tokens`` has cut is none."""
    return EXIT_CODES["context" if form.constraint and end.reason == "length" else end.reason]


def tell(line: str) -> None:
    """A line of our own on stderr."""
    print(f"localllm: {one_line(line)}", file=sys.stderr)


def _escaped(event: Event) -> Event:
    return dataclasses.replace(event, text=escaped(event.text)) if isinstance(event, Text) else event
