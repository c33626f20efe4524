"""How many prefill tokens a step may have besides decode tokens."""

LEAST = 8  # tokens per step at least
STRETCH = 2.5  # most duration of a mixed step, relative to a decode step
REMEMBERED = 16  # steps: time constant of the moving averages


class Pace:
    """Keeps the duration of steps with prefill within STRETCH of decode steps, from measured times.
    Affects only scheduling, never results."""

    def __init__(self) -> None:
        self._plain = 0.0  # seconds of a decode step
        self._each = 0.0  # seconds that a prefill token adds

    def record(self, decoded: int, read: int, seconds: float) -> None:
        """Record a step's duration, with its numbers of decode and prefill tokens."""
        if not decoded:
            return
        if not read:
            self._plain = _mean(self._plain, seconds)
        elif self._plain:
            self._each = _mean(self._each, max(0.0, seconds - self._plain) / read)

    def prefill_budget(self, most: int) -> int:
        """Number of prefill tokens for a step that also decodes."""
        if not (self._plain and self._each):
            return min(most, 4 * LEAST)
        return max(LEAST, min(most, int((STRETCH - 1) * self._plain / self._each)))


def _mean(before: float, now: float) -> float:
    return before + (now - before) / REMEMBERED if before else now
