"""How many threads to use while the machine is busy with other things too, by what steps take."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from localllm.cores import PREEMPTIONS_PER_S

_WINDOW = 8  # steps that tell how it goes at present
_TRIAL_STEPS = 4
_LONG_S = 0.3  # a single step that is disturbed for so long is enough to act
_BETTER, _HOPELESS = 0.93, 1.4  # of what a step took before
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 1.0, 16.0


class ThreadGovernor:
    """Chooses the number of threads for each decode step, by what the steps before it took.

    The threads of a step wait for each other some hundred times. When another program takes one of their cores, all
    of them wait for the scheduler, and fewer threads are faster, by an order of magnitude even. So where steps are
    disturbed, fewer are tried for a few steps, then still fewer, and kept if they are faster; later, now and then,
    more. A trial that failed is repeated after twice the time.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``most`` is best on an idle machine."""
        self.most = most
        self._clock = clock
        self._rungs = sorted({1, -(-most // 2), max(1, most - 1), most})
        self._at = len(self._rungs) - 1
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=_WINDOW)
        self._trial: _Trial | None = None
        self._wait_s = {-1: _SHORTEST_WAIT_S, 1: _SHORTEST_WAIT_S}
        self._not_before_s = {-1: 0.0, 1: 0.0}
        self._moved_s = -math.inf
        self._stride = 1  # how many rungs down the next trial goes

    @property
    def threads(self) -> int:
        """How many the next step should use."""
        return self._rungs[self._at]

    @property
    def trying(self) -> bool:
        """True where the next step is a trial, and tells little about the steps that follow."""
        return self._trial is not None

    def observe(self, seconds: float, cost: float, preempted: int) -> None:
        """A step took ``seconds``, in which a core was taken away ``preempted`` times.

        ``cost`` is what it would cost in units of a step of one token, if nothing disturbed it.
        """
        if self._trial:
            self._judge(self._trial, seconds / cost)
            return
        self._recent.append((seconds / cost, seconds, preempted))
        if self._at > 0 and self._disturbed() and self._clock() >= self._not_before_s[-1]:
            self._try(-self._stride)
        elif self._at + 1 < len(self._rungs) and self._clock() >= self._not_before_s[1]:
            self._try(1)

    def _disturbed(self) -> bool:
        """Cores are taken away steadily: some tens of times a second is what an idle machine shows too."""
        seconds = sum(seconds for _, seconds, _ in self._recent)
        hits = sum(preempted > 0 for _, _, preempted in self._recent)
        preempted = sum(preempted for _, _, preempted in self._recent)
        enough = len(self._recent) >= _TRIAL_STEPS or seconds > _LONG_S
        return enough and hits > 0.7 * len(self._recent) and preempted > PREEMPTIONS_PER_S * seconds

    def _try(self, rungs: int) -> None:
        before_s = sum(unit_s for unit_s, _, _ in self._recent) / len(self._recent)
        self._trial = _Trial(rungs, before_s)
        self._at += rungs

    def _judge(self, trial: "_Trial", unit_s: float) -> None:
        trial.steps_s.append(unit_s)
        hopeless = unit_s > _HOPELESS * trial.before_s
        if len(trial.steps_s) < _TRIAL_STEPS and not hopeless:
            return
        better = not hopeless and sum(trial.steps_s) / len(trial.steps_s) < _BETTER * trial.before_s
        self._trial = None
        self._recent.clear()
        if better:
            self._stride = 1
            self._moved(-1 if trial.rungs < 0 else 1)
            return
        self._at -= trial.rungs
        if -self._at < trial.rungs < 0:  # several cores may be taken: try still fewer
            self._stride += 1
        else:
            self._stride = 1
            self._postpone(-1 if trial.rungs < 0 else 1)

    def _moved(self, direction: int) -> None:
        """Go on with what was tried. Where luck made more threads look better, they are not tried again so soon."""
        now_s, back = self._clock(), -direction
        if direction < 0 and now_s - self._moved_s < 10 * self._wait_s[back]:
            self._postpone(back)
        else:
            self._wait_s[back] = _SHORTEST_WAIT_S
            self._not_before_s[back] = now_s + (_SHORTEST_WAIT_S if direction < 0 else 0)
        self._moved_s = now_s

    def _postpone(self, direction: int) -> None:
        self._not_before_s[direction] = self._clock() + self._wait_s[direction]
        self._wait_s[direction] = min(2 * self._wait_s[direction], _LONGEST_WAIT_S)


@dataclass(slots=True)
class _Trial:
    rungs: int  # up, or down where negative
    before_s: float  # what a step of one token took before
    steps_s: list[float] = field(default_factory=list)
