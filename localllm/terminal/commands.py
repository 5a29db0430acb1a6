"""The slash commands of a chat: an explicit table, and a pure function that reads a line.

Each command gets the chat and its argument and says what to print. Knows no keys and no screen.
"""

from collections.abc import Callable
from dataclasses import dataclass

from localllm.errors import UsageError
from localllm.session.chat import Chat
from localllm.terminal.render import stats_summary


class Leave(Exception):
    """The user wants to end the conversation."""


@dataclass(frozen=True, slots=True)
class Context:
    """What commands may use: the chat, and how to load another model."""

    chat: Chat
    switch_model: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command; ``run`` returns the text to show."""

    name: str
    run: Callable[[Context, str], str]
    help: str
    argument: str = ""
    aliases: tuple[str, ...] = ()


def _help(_: Context, argument: str) -> str:
    if argument:
        command = find(argument.removeprefix("/"))
        return f"/{command.name} {command.argument}".rstrip() + f": {command.help}"
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


def _stats(context: Context, _: str) -> str:
    return stats_summary(context.chat.last, context.chat.engine.info.n_ctx) if context.chat.last else "no answer yet"


COMMANDS = (
    Command("help", _help, "show the commands, or what one does", "[COMMAND]", ("?",)),
    Command("exit", _exit, "leave", aliases=("bye", "quit")),
    Command("clear", _clear, "begin a new conversation; the system prompt stays"),
    Command("system", _system, "show or set the system prompt; /system none removes it", "[TEXT]"),
    Command("model", _model, "show the model, or go on with another one", "[NAME|PATH]"),
    Command("stats", _stats, "show what the last answer cost"),
)

KEYS_HELP = (
    "Enter sends. Ctrl-J, Alt-Enter or a \\ at the end of a line begin a new line; so does a block between "
    'two """.\nCtrl-C stops an answer and keeps what was written. Ctrl-G opens $EDITOR. Ctrl-D leaves.'
)


def find(name: str) -> Command:
    """The command with this name or alias. Raises UsageError naming the nearest ones."""
    for command in COMMANDS:
        if name in (command.name, *command.aliases):
            return command
    import difflib

    known = [n for command in COMMANDS for n in (command.name, *command.aliases)]
    nearest = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    raise UsageError(
        f"there is no command /{name}",
        " or ".join(f"/{n}" for n in nearest) + "?" if nearest else "see /help",
    )


def is_command(line: str) -> bool:
    """True where a line is meant for us and not for the model: a slash and a word, as in /help."""
    word = line.split(maxsplit=1)[0] if line.split() else ""
    return word.startswith("/") and "/" not in word[1:] and len(word) > 1


def run(line: str, context: Context) -> str:
    """Run the command in ``line``; returns what to show. Raises Leave, UsageError and what the command does."""
    name, *rest = line.strip().removeprefix("/").split(maxsplit=1)
    return find(name).run(context, "".join(rest))
