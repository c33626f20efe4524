"""Adaptive draft length, from measured acceptance and costs."""

import math
from collections.abc import Iterable
from itertools import accumulate, pairwise
from operator import mul

PROBING = 0.02  # share of the time that exploring other lengths may cost
WORTHWHILE = 0.97  # of a plain step, to beat: the best of many estimates is biased
REMEMBERED = 64  # observations: time constant of the moving averages
HICCUP = 8  # times the mean: outliers are clipped here
# Priors, optimistic so that rarely tried lengths are explored:
ACCEPTED = 4  # accepted drafts
FREE = 1  # step of cost 0
LONGEST_REST = 512  # tokens


def expected_tokens(acceptance: Iterable[float]) -> list[float]:
    """Expected tokens of a step, for draft lengths from 0 to `len(acceptance)`.

    Token i of a draft is accepted with probability acceptance[i] if all before it are, and the
    target adds one token: 1 + a1 + a1 a2 + ..., or (1 - a^(n+1)) / (1 - a) if all are equal (arXiv
    2211.17192).
    """
    return list(accumulate(accumulate([1.0, *acceptance], mul)))


class Acceptance:
    """Acceptance rates by position in the draft, given that the tokens before were accepted."""

    def __init__(self, most: int) -> None:
        self._shares = [0.0] * most
        self._seen = [0.0] * most

    def add(self, drafted: int, accepted: int) -> None:
        for i in range(min(accepted + 1, drafted)):
            self._seen[i] = min(self._seen[i] + 1, REMEMBERED)
            self._shares[i] += ((i < accepted) - self._shares[i]) / self._seen[i]

    def estimates(self) -> list[float]:
        """Rates by position; rarely seen ones are close to the position before."""
        estimates, before = [], 1.0
        for share, seen in zip(self._shares, self._seen, strict=True):
            before = (seen * share + ACCEPTED * before) / (seen + ACCEPTED)
            estimates.append(before)
        return estimates


class Costs:
    """Mean seconds by draft length."""

    def __init__(self) -> None:
        self.means: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def add(self, length: int, seconds: float) -> None:
        count, mean = self._counts.get(length, 0), self.means.get(length, 0.0)
        if count > 1:
            seconds = min(seconds, HICCUP * mean)
        self._counts[length] = min(count + 1, REMEMBERED)
        # the first may include compilation, so the second replaces it
        self.means[length] = mean + (seconds - mean) / max(count, 1)

    def estimates(self, most: int) -> list[float]:
        """Seconds for lengths from 0 to `most`: measured, or interpolated linearly; beyond the
        longest measured one, extrapolated from the first and the last."""
        known = sorted(self.means)
        if not known:
            return [0.0] * (most + 1)
        means = [self.means[n] * self._counts[n] / (self._counts[n] + FREE) for n in known]
        estimates = [means[0]] * (1 + known[0])
        for (a, first), (b, last) in pairwise(zip(known, means, strict=True)):
            estimates += [first + (last - first) * (n - a) / (b - a) for n in range(a + 1, b + 1)]
        first, last = means[0], means[-1]
        slope = max(0.0, (last - first) / (known[-1] - known[0])) if len(known) > 1 else 0.0
        return estimates + [last + slope * i for i in range(1, most - known[-1] + 1)]


class AdaptiveLength:
    """Chooses the draft length, 0 to `most`; 0 if speculation does not pay.

    The best length has the most expected tokens per second, from measured acceptance and costs.
    Other lengths (0, 1, 2, 4, ... and `most`) are explored with a time budget of `PROBING`, divided
    equally among them: the more a length costs, the rarer it is tried.

    Lengths are those requested from the drafter; that it may propose fewer is part of the
    measurements. For trees the length is the number of nodes, and accepted tokens are those of the
    accepted path.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"drafts of at most {most} tokens: want 1 or more")
        self.most = most
        self.acceptance = Acceptance(most)
        self.draft_seconds, self.step_seconds = Costs(), Costs()
        self.best = 0
        self._pace = 0.0  # seconds per token at the best length
        self._elapsed = 0.0
        self._unread = 0  # tokens that the drafter has not read yet
        tried = {0, most, *(1 << i for i in range(most.bit_length()))}
        self._lost = dict.fromkeys(sorted(tried), 0.0)  # seconds lost by exploring

    def choose(self) -> int:
        """The draft length for the next step."""
        if 0 not in self.step_seconds.means:
            return 0  # measure the target alone first
        if sum(self._lost.values()) > PROBING * self._elapsed:
            return self.best
        return min((n for n in self._lost if n != self.best), key=lambda n: self._lost[n])

    def plain_steps(self) -> int:
        """Number of plain steps before the next exploration, if speculation does not pay."""
        if self.best or 0 not in self.step_seconds.means:
            return 0
        due = sum(self._lost.values()) / PROBING - self._elapsed
        return max(0, min(LONGEST_REST, int(due / self.step_seconds.means[0])))

    def record_plain_step(self, step_seconds: float) -> None:
        """Record a plain step during a rest."""
        self._elapsed += step_seconds
        self._unread += 1
        self.step_seconds.add(0, step_seconds)

    def record(self, asked: int, accepted: int, draft_seconds: float, step_seconds: float) -> None:
        """Record a step: the drafter was asked for `asked` tokens and took `draft_seconds`; the
        target's step took `step_seconds` and accepted `accepted` of them."""
        if not 0 <= accepted <= asked <= self.most:
            raise ValueError(f"{accepted} accepted of {asked} asked for, at most {self.most}")
        # Beyond the cost of plain steps a length is never best, so costs are clipped; at twice
        # that, since the estimates are means.
        step = self.step_seconds.means.get(0, math.inf)
        took, limit = draft_seconds + step_seconds, 2 * (1 + asked) * step
        draft_seconds, step_seconds = min(draft_seconds, limit), min(step_seconds, limit)
        seconds = draft_seconds + step_seconds
        if asked in self.step_seconds.means:  # the first may include compilation
            seconds = min(took, HICCUP * (1 + asked + self._unread) * step)
        self._unread = 0 if asked else self._unread + 1
        self._elapsed += seconds
        if asked in self._lost and asked != self.best:
            lost = self._lost[asked] + seconds - (1 + accepted) * self._pace
            self._lost[asked] = max(0.0, lost)
        self.acceptance.add(asked, accepted)
        self.draft_seconds.add(asked, draft_seconds)
        self.step_seconds.add(asked, step_seconds)
        drafts, steps = (c.estimates(self.most) for c in (self.draft_seconds, self.step_seconds))
        tokens = expected_tokens(self.acceptance.estimates())
        paces = [(d + s) / n for d, s, n in zip(drafts, steps, tokens, strict=True)]
        paces[0] *= WORTHWHILE
        self.best = paces.index(min(paces))
        self._pace = paces[self.best] / (1 if self.best else WORTHWHILE)
