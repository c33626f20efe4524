"""Drafts by the model's own blocks that foretell tokens (engine/models/further.py).

Behind a text's last token but one the first block has read what the model's head read there, and
the last token: its logits are of the token after. Of several blocks the second reads what the first
made of every token, and the token behind the next, drafted or not, so that its logits are one token
further; and so on. Then the last goes on by itself: what it made of the last token stands for what
it would be given behind one more. Keys and values lie in the text's own cells, and for as long as
the last block goes on in free ones.
"""

from collections.abc import Sequence

import numpy as np

from engine.config import ModelError
from engine.model import Model
from engine.speculation.drafter import Draft, Verified
from engine.speculation.model_drafter import shares
from reference.op import Array


class OwnHeads:
    """Chains of likely tokens, each of which has at least `p_min` of the probability of the ten
    likeliest; of a model that was loaded with `foretells`."""

    def __init__(self, model: Model, p_min: float) -> None:
        if not model.ahead:
            raise ModelError(f"{model.file.path}: it was loaded without what foretells tokens")
        self._model, self._p_min = model, p_min
        # What was read last: a text with its drafts, its cells, how many of them each block read.
        self._text, self._cells, self._read = list[int](), list[int](), [0] * len(model.ahead)

    def begin(self, prompt: Sequence[int]) -> None:
        """What was read of another text stays as far as it is the same."""

    def verified(self, step: Verified) -> None:
        """Nothing: the next text says it."""

    def draft(self, text: Sequence[int], most: int) -> Draft:
        """At most so many tokens; none where the cells are not those of the text."""
        cells = self._model.cells
        if most < 1 or not 0 < cells.lengths[0] == len(text) - 1:
            return Draft()
        behind, found = cells.next_position(0), list[int]()
        self._forget_others(text)
        try:
            while len(found) < most:
                logits = self._logits_behind([*text, *found], len(found))
                token, share = shares(logits)[0] if np.isfinite(logits).all() else (0, -1.0)
                if share < self._p_min:
                    break
                found.append(token)
        finally:
            cells.remove(0, begin=behind)
            self._text = [*text, *found]
        return Draft.chain(found)

    def _place(self) -> int:
        """A cell for what is drafted next."""
        cells = self._model.cells
        return int(cells.place([cells.next_position(0)], [(0,)])[0])

    def _forget_others(self, text: Sequence[int]) -> None:
        """What was read counts as far as it was of the same tokens, in the same cells."""
        cells = self._model.cells.of(0).tolist()
        same, there = _alike(self._text, text), _alike(self._cells, cells)
        self._read = [min(n, there, max(same - 1 - i, 0)) for i, n in enumerate(self._read)]
        self._cells = cells

    def _logits_behind(self, text: Sequence[int], drafted: int) -> Array:
        """Float32 [vocab] behind a text of which so many tokens are drafted; its block reads what
        it did not read yet."""
        number = min(drafted, len(self._read) - 1)
        goal = self._place() if number == len(self._read) - 1 else 0
        if drafted > number:  # the last block goes on in the cell that was its goal
            return self._run(number, text[-1:], [int(self._model.cells.of(0)[-2])], goal)
        count, size = len(self._cells), self._model.limits["tokens"]
        following, logits = text[1 + number :], np.empty(0, np.float32)
        for first in range(min(self._read[number], count - 1), count, size):
            part = slice(first, min(first + size, count))
            last = part.stop == count
            own = self._cells[part]
            logits = self._run(number, following[part], own, goal if last else None)
            self._read[number] = part.stop
        return logits

    def _run(
        self, number: int, following: Sequence[int], own: Sequence[int], goal: int | None
    ) -> Array:
        """By that block, tokens behind those that cells of the text, or of the draft, hold; of the
        last of them the logits [vocab], if what the block makes of it has a `goal`."""
        model, count, outputs = self._model, len(own), int(goal is not None)
        ahead = model.ahead[number]
        inputs, positions = ahead.inputs, model.cells.positions[list(own)]
        with model.alone():
            for name, values in (("tokens", following), ("cells", own), ("positions", positions)):
                inputs[name][:count] = values
            ends = np.searchsorted(model.cells.positions_of(0), positions, side="right")
            inputs["spans"][:count] = np.stack([0 * ends, 0 * ends, ends], axis=1)
            inputs["rows"][:outputs], inputs["next_cells"][:outputs] = count - 1, goal or 0
            ahead.resize(tokens=count, outputs=outputs)
            ahead.run()
            return np.array(ahead.logits[0])


def _alike(old: Sequence[int], new: Sequence[int]) -> int:
    """How many they have in common at their beginnings."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
