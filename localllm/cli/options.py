"""Options that several commands share, and how they become values."""

import dataclasses
from typing import Annotated, Any, Literal

import typer

from localllm.config import Settings
from localllm.errors import UsageError
from localllm.values import KvType, Sampling

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME|PATH",
        help="A name from `localllm list`, user/repo[:QUANT], or a GGUF file.",
        show_default=False,
    ),
]
System = Annotated[str, typer.Option("--system", "-s", metavar="TEXT", help="System prompt.", show_default=False)]

Temperature = Annotated[
    float | None, typer.Option("--temp", metavar="T", help="Temperature; 0 always takes the likeliest token.")
]
TopP = Annotated[float | None, typer.Option("--top-p", metavar="P", help="Keep tokens up to this probability in all.")]
TopK = Annotated[int | None, typer.Option("--top-k", metavar="K", help="Keep the K likeliest tokens.")]
MinP = Annotated[
    float | None,
    typer.Option("--min-p", metavar="P", help="Drop tokens below this share of the likeliest one."),
]
RepeatPenalty = Annotated[
    float | None, typer.Option("--repeat-penalty", metavar="R", help="Above 1: avoid the last 64 tokens.")
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Same seed, same answer.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="End the answer after N tokens.")]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="End the answer before this text. Repeatable."),
]

CtxSize = Annotated[int | None, typer.Option("--ctx-size", metavar="N", help="Context size in tokens.")]
Kv = Annotated[Literal["f16", "q8_0", "q4_0"], typer.Option("--kv", help="Type of the KV cache.")]
GpuLayers = Annotated[
    int | None,
    typer.Option("--gpu-layers", "-ngl", metavar="N", help="Layers on the GPU; as many as fit by default."),
]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="Threads; one per core by default.")]
Draft = Annotated[
    str,
    typer.Option(
        "--draft",
        "-md",
        metavar="MODEL|auto|ngram|off",
        help="Who guesses tokens ahead: a smaller model, or only the text so far.",
    ),
]
Exact = Annotated[
    bool,
    typer.Option("--exact", help="Same seed, same answer, to the last bit: whatever is drafted, cached or running."),
]
NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Neither use prompts that were read before nor keep this one."),
]
Continue = Annotated[bool, typer.Option("--continue", "-c", help="Go on with the last conversation.")]
Cid = Annotated[
    str | None,
    typer.Option(
        "--cid", metavar="ID", help="Go on with this conversation, of `localllm history`; its beginning is enough."
    ),
]
NoLog = Annotated[bool, typer.Option("--no-log", "-n", help="Keep no transcript.")]
HideReasoning = Annotated[bool, typer.Option("--hide-reasoning", "-R", help="Do not show the model's reasoning.")]
Usage = Annotated[
    bool, typer.Option("--usage", "-u", "--verbose", "-v", help="Show tokens, speed and settings on stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")]


def sampling_from(defaults: Sampling, **chosen: float | list[str] | None) -> Sampling:
    """``defaults`` with what the user chose, by the names in Sampling. Raises UsageError for a value out of range."""
    values: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None and value != []}
    if "stop" in values:
        values["stop"] = tuple(values["stop"])
    return dataclasses.replace(defaults, **values)


def settings_from(
    ctx_size: int | None,
    kv: KvType,
    gpu_layers: int | None,
    threads: int | None,
    draft: str,
    exact: bool,
    no_cache: bool,
) -> Settings:
    """The runtime settings. Raises UsageError for a value out of range."""
    _at_least("--ctx-size", ctx_size, 256)
    _at_least("--threads", threads, 1)
    _at_least("--gpu-layers", gpu_layers, 0)
    if threads is not None and threads > 512:
        raise UsageError(f"--threads is {threads}, more than llama.cpp can use", "choose at most 512")
    return Settings(ctx_size, kv, gpu_layers, threads, draft, not no_cache, exact)


def _at_least(name: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise UsageError(f"{name} is {value}, which is too small", f"choose at least {low}")
