"""How many tokens are worth drafting, by what became of drafts and what they cost."""

import math
from collections.abc import Iterable
from itertools import accumulate, pairwise
from operator import mul

PROBING = 0.02  # of all time: what trying other lengths than the best may lose
WORTHWHILE = 0.97  # of plain tokens' time, what drafts have to do with: the best of many is lucky
REMEMBERED = 64  # observations, after which one of old counts for a third (1/e)
HICCUP = 8  # times the mean: what lasted longer is not the length's fault
# What nobody tries is never found to be good, so what was seldom seen is thought to be:
ACCEPTED = 4  # drafts that were accepted
FREE = 1  # step that cost nothing
LONGEST_REST = 512  # tokens


def expected_tokens(acceptance: Iterable[float]) -> list[float]:
    """The tokens of a step, by the draft's length, 0 to as many as `acceptance` has positions.

    A draft's token i is accepted with probability acceptance[i] if all before it are, and one token
    more is the target's own: 1 + a1 + a1 a2 + ..., or (1 - a^(n+1)) / (1 - a) where all are a
    (arXiv 2211.17192).
    """
    return list(accumulate(accumulate([1.0, *acceptance], mul)))


class Acceptance:
    """How often a draft's tokens were accepted where those before them were, by position."""

    def __init__(self, most: int) -> None:
        self._shares = [0.0] * most
        self._seen = [0.0] * most

    def add(self, drafted: int, accepted: int) -> None:
        for i in range(min(accepted + 1, drafted)):
            self._seen[i] = min(self._seen[i] + 1, REMEMBERED)
            self._shares[i] += ((i < accepted) - self._shares[i]) / self._seen[i]

    def estimates(self) -> list[float]:
        """By position. One that was seldom seen is thought to be like the one before it."""
        estimates, before = [], 1.0
        for share, seen in zip(self._shares, self._seen, strict=True):
            before = (seen * share + ACCEPTED * before) / (seen + ACCEPTED)
            estimates.append(before)
        return estimates


class Costs:
    """Mean seconds by length."""

    def __init__(self) -> None:
        self.means: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def add(self, length: int, seconds: float) -> None:
        count, mean = self._counts.get(length, 0), self.means.get(length, 0.0)
        if count > 1:
            seconds = min(seconds, HICCUP * mean)
        self._counts[length] = min(count + 1, REMEMBERED)
        # the second replaces the first, for which something may have been compiled
        self.means[length] = mean + (seconds - mean) / max(count, 1)

    def estimates(self, most: int) -> list[float]:
        """By length, 0 to `most`: measured, or on the line through the measured lengths beside it;
        beyond the last, on the line through the first and the last."""
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
    """Chooses how many tokens a drafter is asked for, 0 to `most`: where speculation would slow
    things down, none.

    That is the length with the most expected tokens a second, by formula, from measured acceptance
    and costs. Now and then another is tried: 0, 1, 2, 4, ... or `most`. Tries may lose `PROBING` of
    the time, each length an equal part of it, so the more a try loses the rarer it is, and while
    tries gain they go on.

    Lengths are what the drafter was asked for: where it often proposes fewer, that is in the
    measured acceptance and costs. Of a tree the length is its nodes, the accepted are those of its
    path.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"drafts of at most {most} tokens: want 1 or more")
        self.most = most
        self.acceptance = Acceptance(most)
        self.draft_seconds, self.step_seconds = Costs(), Costs()
        self.best = 0
        self._pace = 0.0  # seconds a token at the best length
        self._elapsed = 0.0
        self._unread = 0  # tokens that the next who is asked has to read first
        tried = {0, most, *(1 << i for i in range(most.bit_length()))}
        self._lost = dict.fromkeys(sorted(tried), 0.0)  # seconds that tries took beyond their worth

    def choose(self) -> int:
        """How many tokens to ask for now."""
        if 0 not in self.step_seconds.means:
            return 0  # what the target alone costs is known first
        if sum(self._lost.values()) > PROBING * self._elapsed:
            return self.best
        return min((n for n in self._lost if n != self.best), key=lambda n: self._lost[n])

    def rest(self) -> int:
        """How many tokens go on without being asked about, where drafts do not pay, until one may
        be tried again."""
        if self.best or 0 not in self.step_seconds.means:
            return 0
        due = sum(self._lost.values()) / PROBING - self._elapsed
        return max(0, min(LONGEST_REST, int(due / self.step_seconds.means[0])))

    def rested(self, step_seconds: float) -> None:
        """What a step took that nobody was asked about."""
        self._elapsed += step_seconds
        self._unread += 1
        self.step_seconds.add(0, step_seconds)

    def record(self, asked: int, accepted: int, draft_seconds: float, step_seconds: float) -> None:
        """What became of it: the drafter, asked for so many tokens, took `draft_seconds`, and the
        target's step `step_seconds`, which accepted so many of them."""
        if not 0 <= accepted <= asked <= self.most:
            raise ValueError(f"{accepted} accepted of {asked} asked for, at most {self.most}")
        # Tokens that cost more than one by one are never worth it, so how much more is no matter;
        # twice, since this is said of means.
        step = self.step_seconds.means.get(0, math.inf)
        took, limit = draft_seconds + step_seconds, 2 * (1 + asked) * step
        draft_seconds, step_seconds = min(draft_seconds, limit), min(step_seconds, limit)
        seconds = draft_seconds + step_seconds
        if asked in self.step_seconds.means:  # the first time something may have been compiled
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
