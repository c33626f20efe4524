"""Drafts by the model's own multi-token-prediction (MTP) blocks (engine/models/mtp.py).

The first block reads the hidden state at the text's last token but one, and the last token; its
logits are for the token after. With several blocks, the second reads the first one's hidden states
and the token after the next (drafted or not), so its logits are for one token further; and so on.
Then the last block continues on its own: its hidden state at the last token replaces the missing
input. Keys and values are stored in the text's cells, and in free cells while the last block
continues.
"""

from collections.abc import Sequence

import numpy as np

from engine.config import ModelError
from engine.model import Model
from engine.speculation.drafter import Draft, Verification
from engine.speculation.model_drafter import top_probabilities
from reference.op import Array


class MTPDrafter:
    """Chains of likely tokens with at least `p_min` of the probability of the ten likeliest, by a
    model loaded with `mtp`."""

    def __init__(self, model: Model, p_min: float) -> None:
        if not model.mtp_blocks:
            raise ModelError(f"{model.file.path}: loaded without multi-token-prediction blocks")
        self._model, self._p_min = model, p_min
        # State of the last draft: text with draft, cells, number of cells read by each block.
        self._text, self._cells, self._read = list[int](), list[int](), [0] * len(model.mtp_blocks)

    def begin(self, prompt: Sequence[int]) -> None:
        """Caches keep the common prefix."""

    def verified(self, step: Verification) -> None:
        """Not needed: the next `draft` has the text."""

    def draft(self, text: Sequence[int], most: int) -> Draft:
        """Draft at most `most` tokens; none if the cache does not match the text."""
        cells = self._model.cells
        if most < 1 or not 0 < cells.lengths[0] == len(text) - 1:
            return Draft()
        end, found = cells.next_position(0), list[int]()
        self._invalidate(text)
        try:
            while len(found) < most:
                logits = self._logits_after([*text, *found], len(found))
                token, share = (
                    top_probabilities(logits)[0] if np.isfinite(logits).all() else (0, -1.0)
                )
                if share < self._p_min:
                    break
                found.append(token)
        finally:
            cells.remove(0, begin=end)
            self._text = [*text, *found]
        return Draft.chain(found)

    def _allocate_cell(self) -> int:
        """Allocate a cell for the next draft token."""
        cells = self._model.cells
        return int(cells.place([cells.next_position(0)], [(0,)])[0])

    def _invalidate(self, text: Sequence[int]) -> None:
        """Invalidate what was read of other tokens or in other cells."""
        cells = self._model.cells.list_of(0).tolist()
        same, there = _common_prefix(self._text, text), _common_prefix(self._cells, cells)
        self._read = [min(n, there, max(same - 1 - i, 0)) for i, n in enumerate(self._read)]
        self._cells = cells

    def _logits_after(self, text: Sequence[int], drafted: int) -> Array:
        """Logits float32 [vocab] after a text whose last `drafted` tokens are drafted; the block
        catches up with what it has not read."""
        number = min(drafted, len(self._read) - 1)
        goal = self._allocate_cell() if number == len(self._read) - 1 else 0
        if drafted > number:  # continue from the cell of its last hidden state
            return self._run(number, text[-1:], [int(self._model.cells.list_of(0)[-2])], goal)
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
        """Run block `number` on tokens after those in the cells `own`; returns the last one's
        logits [vocab], if its hidden state is stored in the cell `goal`."""
        model, count, outputs = self._model, len(own), int(goal is not None)
        ahead = model.mtp_blocks[number]
        inputs, positions = ahead.inputs, model.cells.positions[list(own)]
        with model.exclusive():
            for name, values in (("tokens", following), ("cells", own), ("positions", positions)):
                inputs[name][:count] = values
            ends = np.searchsorted(model.cells.positions_of(0), positions, side="right")
            inputs["spans"][:count] = np.stack([0 * ends, 0 * ends, ends], axis=1)
            inputs["rows"][:outputs], inputs["next_cells"][:outputs] = count - 1, goal or 0
            ahead.resize(tokens=count, outputs=outputs)
            ahead.run()
            return np.array(ahead.logits[0])


def _common_prefix(old: Sequence[int], new: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
