"""config.yaml, changed: one setting at a time, line by line, so that comments and all else stay byte for byte.

Knows where a setting is written and how to put the file in place whole. What is in it, settings.py reads.
"""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import yaml

from localllm import config, settings
from localllm.errors import LocalLLMError, UsageError
from localllm.settings import MAX_FILE_BYTES, TABLE, Setting, Value
from localllm.yamlfile import YamlReader

_BOM = "\ufeff"


def text(file: Path | None = None) -> str:
    """What is in config.yaml (or another file); "" where there is none. Raises UsageError for what cannot be read."""
    file = file or settings.path()
    return YamlReader(file, UsageError, MAX_FILE_BYTES).file_text() if config.is_there(file, UsageError) else ""


def changed(setting: Setting, value: Value | None, written: str = "") -> str:
    """The text of config.yaml with another value of one setting, or (None) without it.

    ``written`` is how the value was typed. Raises UsageError where the file has a mistake or an unusual layout.
    """
    before = text()
    bom, body = (_BOM, before[1:]) if before.startswith(_BOM) else ("", before)
    wanted = {name: choice.value for name, choice in settings.in_file(before).items()} | {setting.name: value}
    line = None if value is None else f"{setting.name}: {_as_yaml(setting, value, written)}"
    after = bom + _edited(body, setting.name, line)
    with suppress(UsageError):
        found = {name: choice.value for name, choice in settings.in_file(after).items()}
        if found == {name: value for name, value in wanted.items() if value is not None}:
            return after
    raise UsageError(
        f"{settings.path()} is laid out in a way that cannot be changed setting by setting", "use: localllm config edit"
    )


def write(content: str, file: Path | None = None) -> None:
    """Put a text in the place of config.yaml (or another file), whole or not at all. Raises LocalLLMError."""
    target = (file or settings.path()).resolve()  # where it is a link, the link stays
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.exists() and not os.access(target, os.W_OK):  # replacing it would get around that
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(content.encode("utf-8", "replace"))
            with suppress(FileNotFoundError):
                shutil.copymode(target, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise LocalLLMError(f"cannot write {target}: {error.strerror}", "nothing was changed") from error


def template() -> str:
    """What a new config.yaml begins as: every setting, as a comment."""
    lines = ["# Settings of localllm: take the # before a name away, and choose. `localllm config` shows what holds."]
    for setting in TABLE:
        lines += ["", f"# {setting.help} ({setting.takes}; else: {setting.default_text})", f"# {setting.name}:"]
    return "\n".join([*lines, ""])


def _edited(body: str, name: str, line: str | None) -> str:
    """``body`` with ``line`` in the place of the setting's own text, or (None) without the lines that hold it."""
    newline = "\r\n" if "\r\n" in body else "\n"
    span = _span(body, name)
    if span is None and line is None:
        return body
    if span is None:
        return body + (newline if body and not body.endswith("\n") else "") + f"{line}{newline}"
    begin, end = span
    if line is not None:
        return body[:begin] + line + body[end:]
    return body[: body.rfind("\n", 0, begin) + 1] + body[body.find("\n", end) + 1 or len(body) :]


def _span(body: str, name: str) -> tuple[int, int] | None:
    """Where key and value of a setting stand, in characters; a comment behind them is not part of it."""
    reader = YamlReader(settings.path(), UsageError, MAX_FILE_BYTES)
    root = reader.root(body)
    for key, value in reader.entries(root) if root else ():
        if key.value == name:
            begin = key.start_mark.index
            return begin, begin + len(body[begin : _end(value)].rstrip())
    return None


def _end(node: yaml.Node) -> int:
    """A list in lines of its own ends with its last item; YAML takes it to reach to the next key, past comments."""
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return _end(node.value[-1])
    return node.end_mark.index


def _as_yaml(setting: Setting, value: Value, written: str) -> str:
    if setting.kind in ("text", "model", "texts"):
        plain = list(value) if isinstance(value, tuple) else value
        return yaml.dump(
            plain, default_style='"', default_flow_style=True, allow_unicode=True, width=float("inf")
        ).rstrip("\n")
    return setting.shown(value) if setting.kind == "switch" or not written else written.strip()
