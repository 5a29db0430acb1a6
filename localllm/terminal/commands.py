"""The slash commands of a chat: an explicit table, and a pure function that reads a line.

Each command gets the chat and its argument and says what to print, what to answer or what to edit. Knows no keys and
no screen.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from localllm.cancel import Cancel
from localllm.config import Settings
from localllm.cores import overload
from localllm.errors import UsageError
from localllm.session import portable
from localllm.session.chat import Chat
from localllm.session.room import Coming, filled
from localllm.sizes import counted, size_text, turns_text
from localllm.terminal import attachments, clipboard, render, stats_view
from localllm.terminal.chat_settings import set_value
from localllm.terminal.context_view import context_view
from localllm.terminal.safe import safe
from localllm.values import Event, WhenFull

if TYPE_CHECKING:
    from localllm.here import Bound
    from localllm.session.templates import Filled


class Leave(Exception):
    """The user wants to end the conversation."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A command that has the model answer: ``begin(cancel, hold_unopened)`` gives the events of the turn.

    It needs room for what is ``coming``.
    """

    begin: Callable[[Cancel, bool], Iterator[Event]]
    coming: Coming


@dataclass(frozen=True, slots=True)
class Edit:
    """A command that puts a text into the input line, to be sent in the place of the last question."""

    text: str


Outcome = str | Answer | Edit


@contextmanager
def _unstoppable() -> Iterator[Cancel]:
    yield Cancel()


@dataclass
class Context:
    """What commands may use and change.

    ``switch_model`` loads another model, ``reload`` the same one with other runtime settings, of which it returns all;
    ``measure`` tells what memory allows it; ``stoppable`` gives a Cancel that Ctrl-C sets. ``files`` go with the next
    message, and ``template`` goes around it; ``typed`` tells what the user wrote of a question that files went with.
    """

    chat: Chat
    view: render.View
    switch_model: Callable[[str], None]
    reload: Callable[[dict[str, object]], Settings]
    measure: "Callable[[], Bound]"
    when_full: WhenFull = "ask"
    stoppable: Callable[[], AbstractContextManager[Cancel]] = _unstoppable
    files: list[attachments.Attachment] = field(default_factory=list)
    typed: dict[str, tuple[str, list[attachments.Attachment]]] = field(default_factory=dict)
    template: "Filled | None" = None

    @property
    def asks_by_itself(self) -> bool:
        """Whether an empty line is a message: with a template, and the file if it wants one, nothing is missing."""
        return self.template is not None and (bool(self.files) or not self.template.needs_input)


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command; ``run`` returns what is to happen. ``completes`` says what its argument is completed with."""

    name: str
    run: Callable[[Context, str], Outcome]
    help: str
    argument: str = ""
    aliases: tuple[str, ...] = ()
    completes: str = ""


def _help(_: Context, argument: str) -> str:
    if argument:
        command = find(argument.removeprefix("/"))
        return f"{_usage(command)}: {command.help}"
    return help_text()


def help_text() -> str:
    """All commands and keys, as ``/help`` shows them."""
    width = max(len(_usage(command)) for command in COMMANDS)
    lines = [f"{_usage(command):{width}}  {command.help}" for command in COMMANDS]
    return "\n".join([*lines, "", KEYS_HELP])


def _usage(command: Command) -> str:
    names = ", ".join(f"/{name}" for name in (command.name, *command.aliases))
    return f"{names} {command.argument}".rstrip()


def _exit(_: Context, __: str) -> str:
    raise Leave


def _clear(context: Context, _: str) -> str:
    context.chat.clear()
    context.files.clear()
    context.template = None
    return "a new conversation begins" + (", the system prompt stays" if context.chat.system else "")


def _system(context: Context, argument: str) -> str:
    if not argument:
        return context.chat.system or "there is no system prompt; /system TEXT sets one"
    context.chat.system = "" if argument == "none" else argument
    return "the system prompt is gone" if argument == "none" else "system prompt set; it holds from the next message on"


def _model(context: Context, argument: str) -> str:
    if argument:
        context.switch_model(argument)
    info = context.chat.engine.info
    return f"{info.name}, context {info.n_ctx:,}"


# --- the last turn -----------------------------------------------------------------------------------------------


def _regen(context: Context, _: str) -> Answer:
    return Answer(context.chat.again, Coming(context.chat.last_question().text, replaces_last=True))


def _continue(context: Context, _: str) -> Answer:
    question, begun = context.chat.last_question(), context.chat.begun()
    return Answer(context.chat.go_on, Coming(question.text, True, len(begun)))


def _undo(context: Context, _: str) -> str:
    question = context.chat.undo()
    typed, _files = context.typed.get(question.text, (question.text, []))
    turns = len(context.chat.said) // 2
    left = f"{turns} left" if turns else "the conversation is empty"
    return f"taken back: {render.shortened(typed)} ({left})"


def _edit(context: Context, _: str) -> Edit:
    question = context.chat.last_question().text
    typed, files = context.typed.get(question, (question, []))
    context.files[:] = files
    return Edit(typed)


def _last_answer(context: Context) -> str:
    said = context.chat.said
    if not said:
        raise UsageError("there is no answer yet", "")
    return said[-1].text


# --- files and the clipboard -------------------------------------------------------------------------------------


def _file(context: Context, argument: str) -> str:
    if not argument:
        names = ", ".join(file.name for file in context.files)
        return f"with your next message: {names}; /file none takes them away" if names else "/file PATH attaches a file"
    if argument == "none":
        context.files.clear()
        return "no files go with your next message"
    with context.stoppable() as cancel:
        attached = attachments.read(argument, cancel)
        shown = described(context.chat, attached, cancel)
    context.files.append(attached)
    return f"{shown}; goes with your next message"


def described(chat: Chat, file: attachments.Attachment, cancel: Cancel) -> str:
    """How large a file is, for people and for the model. Raises what ``Engine.encode_raw`` raises."""
    size = size_text(len(file.text.encode("utf-8", "replace")))
    tokens = len(chat.engine.encode_raw(file.text, cancel).ids)
    share = 100 * tokens / chat.engine.info.n_ctx
    return f"{file.name}: {size}, {counted(tokens, 'token')} ({share:.0f} % of the context)"


def _copy(context: Context, _: str) -> str:
    return clipboard.copy(_last_answer(context), context.view.out)


def _save(context: Context, argument: str) -> str:
    if not argument:
        raise UsageError("/save needs the name of a file", "NAME.md is for reading, /load reads NAME.json back")
    if not context.chat.said:
        raise UsageError("there is nothing to save yet", "")
    path = attachments.path_of(argument)
    document = portable.of_chat(context.chat)
    try:
        _write_new(path, portable.as_json(document) if path.suffix == ".json" else safe(portable.as_markdown(document)))
    except FileExistsError:
        raise UsageError(f"{argument} is there already", "name another file, or remove it first") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot write {argument}: {reason}", "name another file") from error
    return f"saved {turns_text(len(context.chat.said) // 2)} to {argument}"


def _write_new(path: Path, text: str) -> None:
    """Write a file that was not there, whole or not at all. Raises OSError and ValueError."""
    file = path.open("x", encoding="utf-8", errors="replace")
    try:
        with file:
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _load(context: Context, argument: str) -> str:
    if not argument:
        raise UsageError(
            "/load needs the name of a file", "one that /save NAME.json or `localllm history export --json` wrote"
        )
    with context.stoppable() as cancel:
        document = portable.from_json(attachments.read(argument, cancel).text)
    chat = context.chat
    chat.replace([*document.forgotten, *document.given])
    chat.system = document.system
    if document.forgotten and document.given:
        chat.forget(len(document.forgotten) // 2)
    loaded = f"{turns_text(len(chat.said) // 2)} from {argument}"
    left_out = f"; the model is not given the oldest {turns_text(chat.forgotten_turns)} (/context)"
    return loaded + (left_out if chat.forgotten_turns else "")


# --- numbers -----------------------------------------------------------------------------------------------------


def _stats(context: Context, _: str) -> str:
    chat = context.chat
    if not chat.stats:
        return _no_answer(chat)
    last = stats_view.stats_summary(chat.stats[-1], chat.engine.info.n_ctx)
    return f"{last}\n\n{stats_view.session_summary(chat.stats)}" if len(chat.stats) > 1 else last


def _context(context: Context, _: str) -> str:
    chat = context.chat
    with context.stoppable() as cancel:
        fills = filled(chat, cancel)
    return context_view(fills, chat.forgotten_turns, render.columns(context.view.out), chat.turns_before)


def _why(context: Context, _: str) -> str:
    chat = context.chat
    if not chat.last:
        return "no answer of this model yet" if chat.stats else _no_answer(chat)
    from localllm.terminal.why import why

    return why(chat.last, chat.engine.info, context.measure(), overload())


def _no_answer(chat: Chat) -> str:
    return "no answer was written in this session yet" if chat.said else "no answer yet"


COMMANDS = (
    Command("help", _help, "show the commands, or what one does", "[COMMAND]", ("?",), completes="command"),
    Command("exit", _exit, "leave", aliases=("bye", "quit")),
    Command("clear", _clear, "begin a new conversation; the system prompt stays"),
    Command("regen", _regen, "answer the last question anew"),
    Command("undo", _undo, "take the last question and its answer back"),
    Command("edit", _edit, "change the last question and ask it again"),
    Command("continue", _continue, "go on with an answer that was cut"),
    Command("file", _file, "attach a text file to the next message, as @PATH in it does", "[PATH|none]", (), "file"),
    Command("copy", _copy, "copy the last answer to the clipboard"),
    Command("save", _save, "write the conversation to NAME.md or NAME.json", "FILE", completes="file"),
    Command("load", _load, "go on with the conversation in a NAME.json", "FILE", completes="file"),
    Command("system", _system, "show or set the system prompt; /system none removes it", "[TEXT]"),
    Command("model", _model, "show the model, or go on with another one", "[NAME|PATH]", completes="model"),
    Command(
        "set",
        set_value,
        "show or change settings for this chat; default as VALUE unsets one",
        "[NAME [VALUE]]",
        completes="setting",
    ),
    Command("context", _context, "show what fills the context"),
    Command("stats", _stats, "show what the last answer cost, and all of them"),
    Command("why", _why, "explain the last answer's time against what this machine's memory allows"),
)

_NAMES = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
_AS_TEXT = 'a text that begins so can be sent between two """'

KEYS_HELP = (
    "Enter sends. Ctrl-J, Alt-Enter or a \\ at the end of a line begin a new line; so does a block between "
    'two """.\nCtrl-C stops an answer and keeps what was written. Ctrl-R searches what was typed, Tab completes.\n'
    "Ctrl-G opens $EDITOR. Ctrl-D leaves."
)


def find(name: str) -> Command:
    """The command with this name or alias, in any case. Raises UsageError naming the nearest ones."""
    wanted = name.lower()
    if command := _NAMES.get(wanted):
        return command
    if not name:
        raise UsageError("there is no command behind the slash", "/help lists them")
    import difflib

    nearest = difflib.get_close_matches(wanted, _NAMES, n=2, cutoff=0.5)
    hint = " or ".join(f"/{n}" for n in nearest) + "?" if nearest else f"/help lists them; {_AS_TEXT}"
    raise UsageError(f"there is no command /{name}", hint)


def is_command(line: str) -> bool:
    """True where a line is meant for us: it begins with a slash, and with no path of this disk."""
    word = line.split(maxsplit=1)[0] if line.split() else ""
    return word.startswith("/") and (word[1:].lower() in ("", *_NAMES) or not attachments.is_path(word))


def run(line: str, context: Context) -> Outcome:
    """Run the command in ``line``; returns what is to happen. Raises Leave, LocalLLMError."""
    word, *rest = line.split(maxsplit=1)
    name = word.removeprefix("/")
    command = find(name)
    if rest and not command.argument:  # a pasted text that begins so must not end or clear anything
        raise UsageError(f"/{name} takes nothing behind it", _AS_TEXT)
    argument = "".join(rest).rstrip()
    return command.run(context, attachments.unquoted(argument) if command.completes in ("file", "model") else argument)
