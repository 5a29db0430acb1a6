"""Checks that a GPU computes what the processor does. Started by check_gpu.py, whose environment has a build for it.

The processor answers some prompts greedily. The GPU is then led along the same answers, with all layers of the model
on it and with half of them, and the logits before each token are compared. Both are right and yet differ in the last
bits, so a token may be another one where the processor itself was undecided. Prints a line for each check.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

from localllm import Cancel, LocalLLMError, Message, Sampling, Settings, TurnEnd, open_engine
from localllm.app import Located, load_options, locate
from localllm.ceiling.hardware import find
from localllm.ceiling.measure import available_memory_bytes
from localllm.ceiling.roofline import ceiling_tok_s
from localllm.engine.llama import Device, LlamaDecoder, devices
from localllm.engine.slicing import slices
from localllm.errors import UsageError
from localllm.models.gguf import ModelShape
from localllm.sizes import GIB

Logits = NDArray[np.float32]  # a row of n_vocab for each token

PROMPTS = (
    "Name three colours.",
    "def add(a, b):",
    "Grüße aus Köln! 世界",
    "The river runs to the sea, and the sea gives it back to the clouds. " * 40,  # more than one slice of prefill
)
N_CTX, ANSWER_TOKENS = 2048, 32
CPU_SLICE_TOKENS = 16  # from 32 on, llama.cpp has the GPU compute a batch even if no layer is placed there
# Seen with another number of threads or a q8_0 KV cache: up to 0.04. With a token left out of the prompt: 0.1 and more.
MOST_DIVERGENCE = 0.1
MOST_MARGIN = 0.5
MIB = 2**20


class Report:
    """Prints checks as they are made, and remembers whether all of them passed."""

    def __init__(self) -> None:
        self.passed = True

    def check(self, holds: bool, what: str) -> None:
        self.passed &= holds
        print(f"{'passed' if holds else 'FAILED'}: {what}", flush=True)


def main() -> int:
    """Make all checks; 0 where all passed."""
    parser = argparse.ArgumentParser(prog="scripts/check_gpu")
    parser.add_argument("--model", metavar="NAME|PATH", help="a larger model whose decode rate is to be told as well")
    larger = parser.parse_args().model
    report = Report()
    try:
        check_all(report, larger)
    except LocalLLMError as error:
        report.check(False, f"{error.message}; {error.hint}")
    print("all checks passed" if report.passed else "not all checks passed")
    return 0 if report.passed else 1


def check_all(report: Report, larger: str | None) -> None:
    """Every check, in order, and the rates at the end."""
    gpus = devices()
    seen = "; ".join(f"{gpu.name}, {gpu.free_bytes / GIB:.1f} GiB free" for gpu in gpus)
    report.check(bool(gpus), f"llama.cpp sees a GPU ({seen or 'none'})")
    if not gpus:
        return
    model = locate()
    layers = model.shape.n_layers + 1
    check_placement(report, model, gpus)
    with open_engine(model, Settings(ctx_size=N_CTX, gpu_layers=0, cache=False)) as engine:
        prompts = [engine.encode([Message("user", text)]).ids for text in PROMPTS]
    with closing(opened(model, 0)) as decoder:
        expected = [led(decoder, prompt, slice_tokens=CPU_SLICE_TOKENS) for prompt in prompts]
    for gpu_layers in (layers, layers // 2):
        check_answers(report, model, gpu_layers, prompts, expected)
    for located in [model, *([locate(larger)] if larger else [])]:
        print(decode_rate(located, gpus[0]), flush=True)


def check_placement(report: Report, model: Located, gpus: Sequence[Device]) -> None:
    """Free memory decides how many layers are placed: all here, and ever fewer the less there would be."""
    everything = model.shape.n_layers + 1
    chosen = layers_for(model, gpus)
    report.check(chosen == everything, f"all layers go on the GPU ({chosen} of {everything})")
    placed = [layers_for(model, [Device("pretended", 16 * MIB * step)]) for step in range(129)]
    fewer = placed == sorted(placed) and placed[0] == 0 and len(set(placed)) > 2
    report.check(
        fewer, f"the less memory is free, the fewer layers go there ({', '.join(map(str, sorted(set(placed))))})"
    )


def layers_for(model: Located, gpus: Sequence[Device]) -> int:
    """How many layers localllm would place on these GPUs."""
    return load_options(model.shape, Settings(), gpus, available_memory_bytes())[0].gpu_layers


def opened(model: Located, gpu_layers: int) -> LlamaDecoder:
    """The model with this many layers on the GPU."""
    settings = Settings(ctx_size=N_CTX, gpu_layers=gpu_layers, cache=False)
    return LlamaDecoder(model.model.path, load_options(model.shape, settings, devices(), available_memory_bytes())[0])


def check_answers(
    report: Report, model: Located, gpu_layers: int, prompts: Sequence[Sequence[int]], expected: Sequence["Answer"]
) -> None:
    """These layers really are on the GPU, and what it computes is what the processor does."""
    free_bytes = sum(gpu.free_bytes for gpu in devices())
    with closing(opened(model, gpu_layers)) as decoder:
        taken_bytes = free_bytes - sum(gpu.free_bytes for gpu in devices())
        found = [
            difference(answer.logits, led(decoder, prompt, answer.tokens).logits)
            for prompt, answer in zip(prompts, expected, strict=True)
        ]
    weights_bytes = placed_bytes(model.shape, gpu_layers)
    layers = f"{gpu_layers} of {model.shape.n_layers + 1} layers"
    taken = f"{taken_bytes / MIB:.0f} MiB of GPU memory taken for {weights_bytes / MIB:.0f} MiB of weights"
    report.check(taken_bytes > 0.9 * weights_bytes, f"{layers}: {taken}")
    others = sum(one.other_tokens for one in found)
    details = f"divergence up to {max(one.divergence for one in found):.4f}, {others} other tokens"
    details += f" where the processor's lead was up to {max(one.margin for one in found):.2f}" if others else ""
    report.check(all(one.small for one in found), f"{layers}: the answers are the processor's ({details})")


def placed_bytes(shape: ModelShape, gpu_layers: int) -> int:
    """The weights of so many layers, as llama.cpp counts them: the output layer first, then from the last down."""
    return (shape.output_bytes or shape.token_embd_bytes) + sum(shape.layer_bytes[shape.n_layers + 1 - gpu_layers :])


def decode_rate(model: Located, gpu: Device, tokens: int = 256) -> str:
    """A line on how fast it decodes, and how much of the ceiling that is."""
    with open_engine(model, Settings(ctx_size=N_CTX, cache=False)) as engine:
        prompt = engine.encode_raw("one two three " * 8)
        for _ in range(2):  # the first warms the GPU up
            events = engine.reply(prompt, Sampling(temperature=0, max_tokens=tokens))
            rate_tok_s = next(event.stats.decode_tok_s for event in events if isinstance(event, TurnEnd)) or 0.0
        placed = f"{engine.info.gpu_layers} of {engine.info.layers} layers on the GPU"
    line = f"{model.model.name}, {placed}: decode {rate_tok_s:,.1f} tok/s"
    try:
        card = find(gpu.name)
    except UsageError as error:
        return f"{line} (no ceiling: {error.message})"
    most_tok_s = ceiling_tok_s(card.bandwidth_gb_s, model.shape.streamed_bytes)
    return f"{line}, {rate_tok_s / most_tok_s:.0%} of the ceiling of {most_tok_s:,.0f} tok/s ({card.label})"


# --- answers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer: its tokens, and the logits that each of them was chosen from."""

    tokens: Sequence[int]
    logits: Logits


def led(
    decoder: LlamaDecoder, prompt: Sequence[int], along: Sequence[int] = (), slice_tokens: int | None = None
) -> Answer:
    """The logits on the way ``along`` these tokens, or where there are none, along the decoder's own answer."""
    decoder.rewind(0)
    for start, stop in slices(0, len(prompt), slice_tokens or decoder.slice_tokens):
        decoder.feed(prompt[start:stop], Cancel())
    tokens: list[int] = []
    rows: list[NDArray[np.float32]] = []
    for step in range(ANSWER_TOKENS):
        pointer = lib.llama_get_logits_ith(decoder._ctx, -1)
        rows.append(np.ctypeslib.as_array(pointer, (decoder.vocab.n_tokens,)).copy())
        tokens.append(along[step] if along else int(rows[-1].argmax()))
        decoder.feed(tokens[-1:], Cancel())
    return Answer(tokens, np.stack(rows))


@dataclass(frozen=True, slots=True)
class Difference:
    """Between the logits of two machines: over all tokens, the most of each.

    ``divergence`` is the Kullback-Leibler divergence of the probabilities of the next token, in nats. ``margin`` is
    the first machine's lead of its token where the other chose another one, in logits.
    """

    divergence: float
    margin: float
    other_tokens: int

    @property
    def small(self) -> bool:
        """True where rounding explains it."""
        return self.divergence <= MOST_DIVERGENCE and self.margin <= MOST_MARGIN


def difference(ours: Logits, theirs: Logits) -> Difference:
    """Compare the rows of two machines."""
    p, q = log_probabilities(ours), log_probabilities(theirs)
    second, first = np.partition(ours, -2, axis=1)[:, -2:].T
    other = ours.argmax(axis=1) != theirs.argmax(axis=1)
    divergence = (np.exp(p) * (p - q)).sum(axis=1).max()
    return Difference(float(divergence), float((first - second)[other].max(initial=0)), int(other.sum()))


def log_probabilities(logits: Logits) -> NDArray[np.float64]:
    """The logarithm of the softmax of each row."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logarithms: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logarithms


if __name__ == "__main__":
    sys.exit(main())
