"""Options that several commands share, and how they become values."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import click
import typer
from click.core import ParameterSource
from typer.core import TyperCommand

from localllm.config import Settings
from localllm.errors import LocalLLMError, Unavailable
from localllm.settings import SETTINGS, Choice, Value, choices
from localllm.values import KvType, Sampling


def help_of(name: str) -> str:
    """The help of an option that is a setting too."""
    return SETTINGS[name].help


Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME|PATH",
        help=help_of("model"),
        show_default=False,
    ),
]
System = Annotated[str, typer.Option("--system", "-s", metavar="TEXT", help=help_of("system"), show_default=False)]

Temperature = Annotated[float | None, typer.Option("--temp", metavar="T", help=help_of("temp"))]
TopP = Annotated[float | None, typer.Option("--top-p", metavar="P", help=help_of("top_p"))]
TopK = Annotated[int | None, typer.Option("--top-k", metavar="K", help=help_of("top_k"))]
MinP = Annotated[
    float | None,
    typer.Option("--min-p", metavar="P", help=help_of("min_p")),
]
RepeatPenalty = Annotated[float | None, typer.Option("--repeat-penalty", metavar="R", help=help_of("repeat_penalty"))]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help=help_of("seed"))]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", metavar="N", help=help_of("max_tokens"))]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help=help_of("stop")),
]

CtxSize = Annotated[int | None, typer.Option("--ctx-size", metavar="N", help=help_of("ctx_size"))]
Kv = Annotated[Literal["f16", "q8_0", "q4_0"], typer.Option("--kv", help=help_of("kv"))]
GpuLayers = Annotated[
    int | None,
    typer.Option("--gpu-layers", "-ngl", metavar="N", help=help_of("gpu_layers")),
]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help=help_of("threads"))]
Draft = Annotated[
    str,
    typer.Option(
        "--draft",
        "--model-draft",
        "-md",
        metavar="MODEL|auto|ngram|off",
        help=help_of("draft"),
    ),
]
Exact = Annotated[
    bool,
    typer.Option("--exact/--no-exact", help=help_of("exact"), show_default=False),
]
Cache = Annotated[
    bool,
    typer.Option("--cache/--no-cache", help=help_of("cache"), show_default=False),
]
Continue = Annotated[bool, typer.Option("--continue", "-c", help="Go on with the last conversation.")]
Cid = Annotated[
    str | None,
    typer.Option(
        "--cid", metavar="ID", help="Go on with this conversation, of `localllm history`; its beginning is enough."
    ),
]
Log = Annotated[bool, typer.Option("--log/--no-log", " /-n", help=help_of("log"), show_default=False)]
WhenFull = Annotated[
    Literal["ask", "drop", "summarise", "stop"], typer.Option("--when-full", help=help_of("when_full"))
]
HideReasoning = Annotated[
    bool, typer.Option("--hide-reasoning/--show-reasoning", "-R", help=help_of("hide_reasoning"), show_default=False)
]
Markdown = Annotated[bool, typer.Option("--markdown/--no-markdown", help=help_of("markdown"), show_default=False)]
Color = Annotated[Literal["auto", "always", "never"], typer.Option("--color", help=help_of("color"))]
Usage = Annotated[
    bool, typer.Option("--usage/--no-usage", "-u", "--verbose", "-v", help=help_of("usage"), show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")]


def given(name: str) -> bool:
    """Whether the command line gives this option itself: no setting and no default stands for it."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def check(name: str, value: Value | None) -> None:
    """Raise UsageError, naming the option, for a value of a setting that is out of range."""
    SETTINGS[name].check(value, option_of(name))


def option_of(name: str) -> str:
    """How a setting is called on the command line."""
    return f"--{name.replace('_', '-')}"


def sampling_from(
    temp: float | None,
    top_p: float | None,
    top_k: int | None,
    min_p: float | None,
    repeat_penalty: float | None,
    seed: int | None,
    max_tokens: int | None,
    stop: list[str] | None,
    template: Mapping[str, Value] | None = None,
) -> Callable[[Sampling], Sampling]:
    """What puts the user's choices over a model's own, and a template's (by the names in Sampling) over these.

    Raises UsageError for a value out of range, before anything is loaded.
    """
    numbers = {
        "temp": temp,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "seed": seed,
        "max_tokens": max_tokens,
    }
    for name, value in numbers.items():
        check(name, value)
    chosen: dict[str, Any] = {"temperature": numbers.pop("temp"), **numbers, "stop": tuple(stop or ()) or None}
    chosen |= template or {}
    given = {name: value for name, value in chosen.items() if value is not None}
    dataclasses.replace(Sampling(), **given)
    return lambda defaults: dataclasses.replace(defaults, **given)


def settings_from(
    ctx_size: int | None,
    kv: KvType,
    gpu_layers: int | None,
    threads: int | None,
    draft: str,
    exact: bool,
    cache: bool,
    log: bool = True,
) -> Settings:
    """The runtime settings. What is not to be kept (``log``) does not get into the prefix cache either.

    Raises UsageError for a value out of range.
    """
    for name, value in (("ctx_size", ctx_size), ("threads", threads), ("gpu_layers", gpu_layers)):
        check(name, value)
    return Settings(ctx_size, kv, gpu_layers, threads, draft, cache, exact, cache_writes=log)


class SettingsCommand(TyperCommand):
    """A command whose options, where they are left out, are as config.yaml and the environment say."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. What it then complains of says where it is set, if not on the command line."""
        used = [
            choice
            for name, choice in choices().items()
            if name in ctx.params and ctx.get_parameter_source(name) is ParameterSource.DEFAULT
        ]
        ctx.params |= {choice.setting.name: choice.value for choice in used}
        try:
            return super().invoke(ctx)
        except LocalLLMError as error:
            origins = [f"{choice.setting.name} is set in {choice.place}" for choice in used if _is_about(error, choice)]
            error.hint = "; ".join(filter(None, (error.hint, *origins)))
            raise


def _is_about(error: LocalLLMError, choice: Choice) -> bool:
    if choice.setting.name == "ctx_size":
        return f"a context of {choice.value:,} tokens" in error.message
    named = choice.setting.kind == "model" and isinstance(error, Unavailable) and str(choice.value) in error.message
    return f"{option_of(choice.setting.name)} " in error.message or named
