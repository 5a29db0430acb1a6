"""What would make a model faster, or fit: each piece of advice with the number that it rests on.

Asks ``answer`` again with one thing changed. Knows nothing of quality: what a smaller quantisation costs there is not
measured here, and is said so.
"""

from collections.abc import Iterator
from dataclasses import replace

from localllm.ceiling.answer import Question, Result, Subject, answer
from localllm.ceiling.quantisations import LADDER, bits_per_weight, precision
from localllm.ceiling.roofline import Experts, Workload

_WORTH = 1.05  # times as fast; less is not worth a line
_SAVES = 1.03  # the same, for an answer that was measured
_Q8_0 = 17 / 32  # of the bytes of f16
_MANY_USERS = 4  # from here on a server that batches is worth a thought
_LONG_PROMPT = 8  # times the output: then reading is what takes time
_STEPS_DOWN = 2
_SMALLER = 0.9  # of the bits; a quantisation that saves less is no other choice


def advice(subject: Subject, result: Result, question: Question) -> list[str]:
    """In words, the most useful first. Empty where nothing is known that would help."""
    return [
        *_to_fit(subject, result, question),
        *_quantisation(subject, result, question),
        *_cache_type(subject, result, question),
        *_shorter(result),
        *_draft(result),
        *_stack(result, question),
    ]


def savings(subject: Subject, depth: int, weights: float, kv: float) -> Iterator[str]:
    """What would make an answer behind ``depth`` tokens faster that was measured, the most useful first.

    ``weights`` and ``kv`` are the shares of its time that reading them takes. What makes one of them smaller saves at
    most that share (Amdahl's law), whatever it would do if memory were all; what saves next to nothing is left out.
    """
    weights, kv = (share / max(1.0, weights + kv) for share in (weights, kv))
    workload, unknown, found = subject.workload, "quality not measured", list[tuple[float, str, str]]()
    for quant, other in list(_smaller(subject))[:_STEPS_DOWN]:
        saved = weights * (1 - other.workload.streamed_bytes / workload.streamed_bytes)
        why = f"the weights take {100 * weights:.0f} % of the time; {unknown}"
        found.append((saved, f"{quant} instead of {subject.quantisation}", why))
    cache = f"the KV cache takes {100 * kv:.0f} % of the time"
    if subject.kv == "f16":
        found.append((kv * (1 - _Q8_0), "--kv q8_0", f"{cache}; {unknown}"))
    if read := workload.kv_read(depth):
        found.append((kv * (1 - workload.kv_read(depth // 2) / read), "half the context", cache))
    for saved, what, why in sorted(found, reverse=True):
        if 1 / (1 - saved) >= _SAVES:
            yield f"{what}: at most {1 / (1 - saved):.2f} × ({why})"


def _rate(result: Result) -> float:
    """What to compare: expected where it is known, else the ceiling."""
    deepest = result.deepest
    return deepest.expected.mid if deepest.expected else deepest.ceiling_tok_s


def _gain(before: Result, after: Result) -> str:
    kind = "expected" if before.deepest.expected and after.deepest.expected else "ceiling"
    return f"{_rate(after) / _rate(before):.2f} × ({kind} {_number(_rate(before))} → {_number(_rate(after))} tok/s)"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def in_quantisation(subject: Subject, quant: str) -> Subject | None:
    """The same model in another quantisation, by bits per weight; None where one of them is not known."""
    now, then = bits_per_weight(subject.quantisation), bits_per_weight(quant)
    if now is None or then is None:
        return None
    scale, workload = then / now, subject.workload
    experts = workload.experts and Experts(
        round(workload.experts.all_bytes * scale), workload.experts.count, workload.experts.used
    )
    smaller = Workload(
        round(workload.weights_bytes * scale),
        round(workload.streamed_bytes * scale),
        workload.kv_held,
        workload.kv_read,
        experts,
    )
    return replace(subject, workload=smaller, quantisation=quant, precision=precision(quant))


def _smaller(subject: Subject) -> Iterator[tuple[str, Subject]]:
    now = bits_per_weight(subject.quantisation) or 0.0
    for quant in LADDER:
        if (bits_per_weight(quant) or now) < _SMALLER * now and (other := in_quantisation(subject, quant)):
            yield quant, other


def _to_fit(subject: Subject, result: Result, question: Question) -> Iterator[str]:
    if result.fits is not False:
        return
    if question.draft and answer(subject, result.machine, replace(question, draft=None)).fits:
        yield "it fits without the draft"
        return
    for quant, other in _smaller(subject):
        if answer(other, result.machine, question).fits:
            yield f"{quant} would fit ({other.workload.weights_bytes / 1e9:.3g} GB of weights; quality not measured)"
            break
    if question.ctx > 512 and result.machine.fits(subject.workload.held_bytes(512) + subject.compute_bytes(512)):
        longest = _longest(subject, result, question)
        yield f"a context of {longest:,} tokens would fit"
    if result.machine.ram is None and result.machine.first.kind == "gpu":
        yield "part of the layers can stay in main memory: ask again with --ram ddr5-5600x2, or what the machine has"


def _longest(subject: Subject, result: Result, question: Question) -> int:
    """The longest context that fits, in steps of 256 tokens."""
    low, high = 2, max(3, question.ctx // 256)
    while high - low > 1:
        middle = (low + high) // 2
        fits = answer(subject, result.machine, replace(question, ctx=middle * 256)).fits
        low, high = (middle, high) if fits else (low, middle)
    return low * 256


def _quantisation(subject: Subject, result: Result, question: Question) -> Iterator[str]:
    for quant, other in list(_smaller(subject))[:_STEPS_DOWN]:
        faster = answer(other, result.machine, question)
        if _rate(faster) > _WORTH * _rate(result):
            yield f"{quant} instead of {subject.quantisation}: {_gain(result, faster)}; quality not measured"


def _cache_type(subject: Subject, result: Result, question: Question) -> Iterator[str]:
    if not question.ctx or subject.kv != "f16" or not subject.kv_bytes_per_token:
        return
    workload = subject.workload
    halved = replace(
        workload,
        kv_held=lambda tokens: workload.kv_held(tokens) * 17 // 32,
        kv_read=lambda tokens: workload.kv_read(tokens) * 17 // 32,
    )
    after = answer(replace(subject, workload=halved, kv="q8_0"), result.machine, question)
    saved = workload.kv_held(question.ctx) - halved.kv_held(question.ctx)
    if saved > 0.02 * result.held_bytes:
        gain = f", {_gain(result, after)}" if _rate(after) > _WORTH * _rate(result) else ""
        yield f"--kv q8_0: {_number(saved / 1e9)} GB less for {question.ctx:,} tokens{gain}; quality not measured"


def _shorter(result: Result) -> Iterator[str]:
    if len(result.depths) < 3 or result.depths[0].depth == result.depths[-1].depth:
        return
    middle, deepest = result.depths[1], result.deepest
    here, there = (at.expected.mid if at.expected else at.ceiling_tok_s for at in (deepest, middle))
    if there > 1.1 * here:
        yield f"half the context: {there / here:.2f} × ({_number(here)} → {_number(there)} tok/s)"


def _draft(result: Result) -> Iterator[str]:
    found = result.speculation
    if found is None:
        return
    if found.drafted:
        yield (
            f"{found.draft} as draft, {found.drafted} guess{'es' if found.drafted > 1 else ''} a step, "
            f"{found.acceptance:.0%} of them right: "
            f"{found.tokens_per_step:.2f} tokens a step, {found.speedup:.2f} × (computed; a guess costs "
            f"{found.draft_cost:.2f} of a step)"
        )
    else:
        yield (
            f"{found.draft} as draft does not pay at {found.acceptance:.0%} acceptance: a guess costs "
            f"{found.draft_cost:.2f} of a step"
        )


def _stack(result: Result, question: Question) -> Iterator[str]:
    """Which software suits: one user is bound by memory, and many share what is read."""
    if question.users < _MANY_USERS or not result.batches:
        if question.prompt and question.output and question.prompt > _LONG_PROMPT * question.output:
            yield (
                f"the prompt is {question.prompt / question.output:.0f} times as long as the answer: a prompt-prefix "
                "cache (localllm keeps one) saves reading what prompts share"
            )
        return
    alone, together = result.batches[0], next(b for b in result.batches if b.users == question.users)
    bend = f"; up to {result.bend:,} users memory is the limit, beyond that computing" if result.bend else ""
    yield (
        f"{question.users:,} users in one batch: {together.aggregate_tok_s:,.0f} tok/s together, "
        f"{together.aggregate_tok_s / alone.aggregate_tok_s:.1f} × one user's {alone.aggregate_tok_s:.0f}, "
        f"{together.per_user_tok_s:.0f} each{bend}"
    )
    yield (
        "for that, a server that batches continuously and shares prefixes: vLLM or SGLang, TensorRT-LLM on NVIDIA; "
        "llama.cpp (and localllm) are made for one user or a few"
    )
