"""Settings that can be changed within a chat: which, what they are now, and what changing one takes.

Names, types and ranges are those of settings.py. What is changed holds for this chat and is stored nowhere.
"""

import re
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from localllm.errors import UsageError
from localllm.settings import SETTINGS, Value, find
from localllm.terminal.stats_view import CONTEXT_REASONS
from localllm.values import WhenFull

if TYPE_CHECKING:
    from localllm.terminal.commands import Context

_SAMPLED = {"temp": "temperature"} | {
    name: name for name in ("top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens", "stop")
}
_RUNTIME = ("ctx_size", "kv", "gpu_layers", "threads", "draft", "exact", "cache")
SETTABLE = (*_SAMPLED, "hide_reasoning", "markdown", "when_full", *_RUNTIME)
_ELSEWHERE = {"model": "/model changes the model", "system": "/system changes the system prompt"}


def set_value(context: "Context", argument: str) -> str:
    """``/set``: all values, one, or a new one. Raises UsageError for what is no setting, or no value of one."""
    name, *rest = re.split(r"\s*=\s*|\s+", argument, maxsplit=1)  # temp 0.5, or temp=0.5
    text = "".join(rest)
    if not name:
        width = max(map(len, SETTABLE))
        return "\n".join(f"{name:{width}}  {_current(context, name)}" for name in SETTABLE)
    setting = find(name.replace("-", "_"))
    if setting.name not in SETTABLE:
        raise UsageError(f"{setting.name} cannot be changed here", _ELSEWHERE.get(setting.name, "see: localllm config"))
    if text:
        _change(context, setting.name, None if text == "default" else setting.parse(text.strip()))
    return f"{setting.name} = {_current(context, setting.name)}; takes {setting.takes}"


def _change(context: "Context", name: str, value: Value | None) -> None:
    """None is what holds where nothing is chosen."""
    if value is None:
        value = SETTINGS[name].default
    if name in _SAMPLED:
        field = _SAMPLED[name]
        context.chat.tune(**{field: getattr(context.chat.engine.sampling, field) if value is None else value})
    elif name in _RUNTIME:
        context.reload({name: value})
    elif name == "when_full":
        context.when_full = cast("WhenFull", value)
    elif name == "hide_reasoning":
        context.view = replace(context.view, reasoning=not value)
    else:
        context.view = replace(context.view, markdown=bool(value))


def _current(context: "Context", name: str) -> str:
    """What holds now; where the user has left that to us, also how it came to be so."""
    setting, chat, value = SETTINGS[name], context.chat, None
    if name in _SAMPLED:
        value = getattr(chat.sampling, _SAMPLED[name])
    elif name in _RUNTIME:
        value = getattr(context.reload({}), name)
    elif name == "when_full":
        value = context.when_full
    else:
        value = not context.view.reasoning if name == "hide_reasoning" else context.view.markdown
    if value is not None and value != ():
        return setting.shown(value)
    info = chat.engine.info
    found = {
        "ctx_size": f"{info.n_ctx:,} ({CONTEXT_REASONS[info.n_ctx_reason]})",
        "threads": f"{info.threads} ({setting.default_text})",
        "gpu_layers": f"{info.gpu_layers} ({setting.default_text})",
    }
    return found.get(name, setting.default_text)
