"""What speculative decoding gains, by workload and draft. Started by scripts/bench_speculation.

The target is the default model with layers appended that change nothing, in F16: an F16 model of 0.9 B parameters that
is bound by memory bandwidth, and answers as the default model does. Its drafts are the default model itself,
which nearly always agrees, and worse quantisations of it.

In each round every way to decode has its turn with the same prompt, in one order and then in the other; ratios are
those of one round, and the median counts. The best fixed length of draft is searched first, in a round of its own.
Where llama-speculative-simple is on the PATH, it has its turn with the weaker drafts, at its own best length.
Run it while nothing else runs.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench_peers import in_turn, machine
from made_models import deepened, requantised

from localllm.app import locate
from localllm.config import cache_dir
from localllm.cores import default_threads
from localllm.engine.costs import CostModel
from localllm.engine.decoder import Sampler
from localllm.engine.drafters import ModelDrafter
from localllm.engine.llama import LlamaDecoder, LoadOptions
from localllm.engine.slicing import slices
from localllm.engine.speculate import Speculator
from localllm.engine.stepper import Stepper
from localllm.values import Sampling

N_CTX = 2048
FIXED = (2, 3, 4, 5, 7, 9, 11, 15, 23)  # lengths of draft that are searched
LEAST_OF_PLAIN, LEAST_OF_FIXED, LEAST_OF_COPY = 0.95, 0.95, 1.5
LEAST_OF_CODE = 1.5  # with a draft that nearly always agrees
LEAST_OF_PEER = 1.0
PEER, PEER_LENGTHS = "llama-speculative-simple", (2, 3, 4, 5, 8, 12)

SOURCE = '''class Account:
    """Money that belongs to one owner."""

    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("there is not enough money")
        self.balance -= amount
        return self.balance

    def transfer(self, other, amount):
        self.withdraw(amount)
        other.deposit(amount)
'''
QUOTE = (
    "In the spring of that year the river rose higher than anyone could remember, and the people of the lower town "
    "carried what they owned up the hill to the church, where they stayed for eleven days. When the water went down "
    "they found their gardens under a hand of grey mud, and the old bridge gone. It was rebuilt in stone, with five "
    "arches, and it still stands where the road to the mill turns towards the north.\n"
)


@dataclass(frozen=True)
class Workload:
    """A prompt, and how it goes on: by what the target itself writes, or, where ``answer`` is given, by that.

    A given answer is what a larger model would write: the target computes each step as ever, and then its choice is
    replaced.
    """

    prompt: str
    temperature: float = 0.0
    answer: str = ""


WORKLOADS = {
    "code": Workload(f"{SOURCE}\n\nclass Stack:\n    def __init__(self):\n"),
    "JSON": Workload('[\n  {"name": "Ada", "born": 1815, "city": "London"},\n  {"name": "Alan", "born": 1912,'),
    "a list": Workload("The capitals of Europe:\n1. France: Paris\n2. Spain: Madrid\n3. Italy:"),
    "prose": Workload("It was late in the evening when the train at last came to the station, and"),
    "random text": Workload("The words of the day are: cat, seven, gold,", temperature=2.0),
}
COPIES = {
    "a file with one name changed": Workload(
        f"{SOURCE}\n# with amount called value:\n", answer=SOURCE.replace("amount", "value")
    ),
    "a quoted text corrected": Workload(
        f"{QUOTE}\nCorrected:\n",
        answer=QUOTE.replace("eleven", "twelve").replace("grey", "brown").replace("five", "six"),
    ),
    "a text copied": Workload(f"{QUOTE}\n{QUOTE}\n{QUOTE[:60]}"),
}


class Scripted:
    """A sampler that samples, and then says what it was told to say."""

    def __init__(self, sampler: Sampler, ids: Sequence[int]) -> None:
        self._sampler, self._ids = sampler, iter(ids)

    def sample(self, index: int = -1) -> int:
        self._sampler.sample(index)
        return next(self._ids)

    def close(self) -> None:
        self._sampler.close()


class FixedLength(Speculator):
    """Always as many guesses, as most programs do."""

    def __init__(self, length: int, tokens: Sequence[int], draft: LlamaDecoder | None) -> None:
        super().__init__(CostModel(), tokens)
        self._length, self._draft, self._tokens = length, draft, list(tokens)

    def draft(self, most: int, cancelled: Callable[[], bool]) -> list[int]:
        length = min(self._length, most)
        if not self._draft:
            return self._ngram.guesses(length)
        held = self._draft.tokens
        agreed = min(len(held), len(self._tokens) - 1)
        while agreed and held[:agreed] != self._tokens[:agreed]:
            agreed -= 1
        agreed = self._draft.rewind(agreed)
        for start, stop in slices(agreed, len(self._tokens), self._draft.slice_tokens):
            self._draft.feed(self._tokens[start:stop], cancelled)
        guesses = [self._draft.likeliest()[0]]
        while len(guesses) < length:
            self._draft.feed(guesses[-1:], cancelled)
            guesses.append(self._draft.likeliest()[0])
        return guesses

    def learn(
        self, draft: Sequence[int], chosen: Sequence[int], drafting_s: float, step_s: float, typical: bool = True
    ) -> None:
        super().learn(draft, chosen, drafting_s, step_s, typical)
        self._tokens += chosen

    def stop(self) -> None:
        raise SystemExit("the target cannot take guesses back")


class FixedStepper(Stepper):
    """A stepper whose drafts have one length."""

    def __init__(self, decoder: LlamaDecoder, length: int, draft: LlamaDecoder | None) -> None:
        super().__init__(decoder)
        self._fixed_length, self._fixed_draft = length, draft

    def begin(self, tokens: Sequence[int]) -> None:
        self._speculator = FixedLength(self._fixed_length, tokens, self._fixed_draft)


@dataclass(frozen=True)
class Written:
    """One turn: its rate, and what became of its guesses."""

    tok_s: float
    drafted: int
    accepted: int
    tokens_per_step: float
    ids: tuple[int, ...]


def write(target: LlamaDecoder, work: Workload, tokens: int, stepper: Stepper, turn: int) -> Written:
    """Decode behind the prompt, which is read before the time begins."""
    ids = target.vocab.tokenize(work.prompt)
    kept = target.rewind(0)
    for start, stop in slices(kept, len(ids), target.slice_tokens):
        target.feed(ids[start:stop], bool)
    stepper.prefill()
    sampler: Sampler = target.sampler(Sampling(temperature=work.temperature), 1000 + turn)
    if work.answer:
        script = target.vocab.tokenize(work.answer)
        sampler, tokens = Scripted(sampler, script), min(tokens, len(script))
    with closing(sampler):
        written = [sampler.sample()]
        stepper.begin([*ids, *written])
        begin_s = time.perf_counter()
        with suppress(StopIteration, RuntimeError):  # the script has come to its end in the middle of a step
            while len(written) < tokens:
                written += stepper.step(written[-1], sampler, bool, tokens - len(written))
        seconds = time.perf_counter() - begin_s
    count = len(written) - 1
    return Written(count / seconds, stepper.drafted, stepper.accepted, count / max(1, stepper.steps), tuple(written))


def peer_writes(target: Path, draft: Path, work: Workload, tokens: int, threads: int, length: int) -> Written:
    """The same by llama.cpp's own program: its rate while it decodes, as it says itself."""
    models = ("-m", target, "-md", draft, "--spec-type", "draft-simple", "--spec-draft-n-max", length)
    run = ("-p", work.prompt, "-n", tokens, "--temp", work.temperature, "-c", N_CTX, "-t", threads, "-tb", threads)
    command = [PEER, *map(str, (*models, *run))]
    said = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    found = re.search(r"decoded +(\d+) tokens in +([\d.]+) seconds", said.stdout + said.stderr)
    if not found:
        raise SystemExit(f"{PEER} does not say how fast it was")
    return Written(int(found[1]) / float(found[2]), 0, 0, 0.0, ())


def compare(
    target: LlamaDecoder,
    name: str,
    work: Workload,
    draft: tuple[str, LlamaDecoder] | None,
    costs: CostModel,
    options: argparse.Namespace,
    target_ratio: float,
    peer: Callable[[int], Written] | None = None,
) -> None:
    """Print the row of one workload with one draft; ``peer`` writes with drafts of a length."""
    if options.only and name not in options.only:
        return
    drafter = ModelDrafter(draft[0], lambda: draft[1]) if draft else None
    run = partial(write, target, work, options.tokens)
    searched = {length: run(FixedStepper(target, length, draft[1] if draft else None), 0).tok_s for length in FIXED}
    best = max(searched, key=searched.__getitem__)
    steppers: Mapping[str, Stepper] = {
        "plain": Stepper(target),
        "speculative": Stepper(target, costs, drafter),
        "fixed": FixedStepper(target, best, draft[1] if draft else None),
    }
    ways: dict[str, Callable[[int], Written]] = {way: partial(run, stepper) for way, stepper in steppers.items()}
    if peer:
        peer_best = max(PEER_LENGTHS, key=lambda length: peer(length).tok_s)
        ways["peer"] = lambda _: peer(peer_best)
    rounds = in_turn(ways, options.runs)
    of_plain, of_fixed = (median_ratio(rounds["speculative"], rounds[other]) for other in ("plain", "fixed"))
    last = rounds["speculative"][-1]
    accepted = f"{100 * last.accepted / last.drafted:.0f} %" if last.drafted else "–"
    cells = [
        *(name, draft[0] if draft else "the text", f"{of_plain:.2f}", target_met(of_plain, target_ratio)),
        *(f"{of_fixed:.2f}", target_met(of_fixed, LEAST_OF_FIXED), best, accepted, f"{last.tokens_per_step:.2f}"),
        *(f"{repeated(work, target, rounds['plain'][-1]):.2f}", len(rounds["plain"])),
    ]
    if peer:
        of_peer = median_ratio(rounds["speculative"], rounds["peer"])
        cells += [f"{of_peer:.2f}", target_met(of_peer, LEAST_OF_PEER), peer_best]
    else:
        cells += ["–"] * 3
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def median_ratio(ours: Sequence[Written], theirs: Sequence[Written]) -> float:
    """The median over the rounds."""
    return statistics.median(our.tok_s / their.tok_s for our, their in zip(ours, theirs, strict=True))


def target_met(ratio: float, least: float) -> str:
    """The target, and whether it is reached."""
    return f"≥ {least:.2f}: {'yes' if ratio >= least else '**no**'}"


def repeated(work: Workload, target: LlamaDecoder, written: Written) -> float:
    """The share of the answer's 4-grams that stand in the prompt."""
    prompt = target.vocab.tokenize(work.prompt)
    known = set(four_grams(prompt))
    grams = list(four_grams(written.ids))
    return sum(gram in known for gram in grams) / max(1, len(grams))


def four_grams(ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All of them, in order."""
    return (tuple(ids[at : at + 4]) for at in range(len(ids) - 3))


def main() -> None:
    """Print the table, and the cost curve that was learned on the way."""
    parser = argparse.ArgumentParser(prog="scripts/bench_speculation", description="What speculation gains.")
    parser.add_argument("--runs", type=int, default=10, help="rounds that count (default: 10)")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each answer (default: 96)")
    parser.add_argument("--layers", type=int, default=240, help="layers of the target (default: 240)")
    parser.add_argument("--only", action="append", help="a workload, repeatable (default: all of them)")
    options = parser.parse_args()
    folder = cache_dir() / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    source = locate("smollm2-135m").model.path
    target_path = requantised(deepened(source, options.layers, folder), "F16", folder)
    threads = default_threads()
    print(f"{machine()}; {target_path.name}, {target_path.stat().st_size / 1e9:.2f} GB, {threads} threads\n")
    print("| workload | draft | of plain | target | of the best fixed length | target | that length ", end="")
    print(f"| accepted | tokens a step | 4-grams in the prompt | rounds | of {PEER} | target | its length |")
    print("|---|---|---:|---|---:|---|---:|---:|---:|---:|---:|---:|---|---:|")
    load: Callable[..., LlamaDecoder] = partial(LlamaDecoder, options=LoadOptions(N_CTX, threads=threads))
    with ExitStack() as stack:
        target = stack.enter_context(closing(load(target_path)))
        drafts = {
            "the default model": stack.enter_context(closing(load(source))),
            "its Q4_0": stack.enter_context(closing(load(requantised(source, "Q4_0", folder)))),
            "its Q2_K": stack.enter_context(closing(load(requantised(source, "Q2_K", folder)))),
        }
        costs = CostModel()
        write(target, WORKLOADS["prose"], 200, Stepper(target, costs), 0)  # as an earlier call would have learned them
        for name, work in WORKLOADS.items():
            least = LEAST_OF_CODE if name == "code" else LEAST_OF_PLAIN
            compare(target, name, work, ("the default model", drafts["the default model"]), costs, options, least)
        for kind in ("Q4_0", "Q2_K"):
            draft = (f"its {kind}", drafts[f"its {kind}"])
            path = requantised(source, kind, folder)
            peer = partial(peer_writes, target_path, path, WORKLOADS["code"], options.tokens, threads)
            known = peer if shutil.which(PEER) else None
            compare(target, "code", WORKLOADS["code"], draft, costs, options, LEAST_OF_PLAIN, known)
        for name, work in COPIES.items():
            compare(target, name, work, None, costs, options, LEAST_OF_COPY)
        for name in ("prose", "random text"):
            compare(target, name, WORKLOADS[name], None, costs, options, LEAST_OF_PLAIN)
    if not shutil.which(PEER):
        print(f"\n{PEER} is not on the PATH.")
    shape = ", ".join(f"{width}: {cost:.2f}" for width, cost in sorted(costs.shape.items()))
    print(f"\nWhat a step of several tokens was seen to cost, in steps of one: {shape}")


if __name__ == "__main__":
    main()
