"""How many tokens of prompts a step may have beside answers that go on."""

LEAST = 8  # tokens, however long they take
STRETCH = 2.5  # times a step without prompts
REMEMBERED = 16  # steps, after which one of old counts for a third (1/e)


class Pace:
    """Keeps steps that also read prompts within STRETCH of those that do not, by what steps have
    taken. It decides when, never what: no result depends on it."""

    def __init__(self) -> None:
        self._plain = 0.0  # seconds of a step that only goes on
        self._each = 0.0  # what a prompt's token adds

    def add(self, decoded: int, read: int, seconds: float) -> None:
        """A step with so many tokens of answers and of prompts."""
        if not decoded:
            return
        if not read:
            self._plain = _mean(self._plain, seconds)
        elif self._plain:
            self._each = _mean(self._each, max(0.0, seconds - self._plain) / read)

    def chunk(self, most: int) -> int:
        """Tokens of prompts for a step that goes on with answers, too."""
        if not (self._plain and self._each):
            return min(most, 4 * LEAST)
        return max(LEAST, min(most, int((STRETCH - 1) * self._plain / self._each)))


def _mean(before: float, now: float) -> float:
    return before + (now - before) / REMEMBERED if before else now
