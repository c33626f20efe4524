"""Drafts by the model's own block that foretells a token (engine/models/further.py).

Behind a text's last token but one the block has read what the model's head read there, and the last
token: its logits are of the token after. What it made of that stands for what the model's head
would read behind the last token, so with its likeliest token the block goes on. Its keys and values
lie in the text's own cells, and for as long as it drafts in free ones.
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
        if model.ahead is None:
            raise ModelError(f"{model.file.path}: it was loaded without what foretells tokens")
        self._model, self._p_min = model, p_min
        self._read: list[tuple[int, int]] = []  # cells that it has read, with the token behind each

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
        try:
            logits = self._logits_behind(text)
            while np.isfinite(logits).all():
                token, share = shares(logits)[0]
                if share < self._p_min:
                    break
                found.append(token)
                if len(found) == most:
                    break
                own = int(cells.of(0)[-1])
                logits = self._run([token], [own], self._place())
        finally:
            cells.remove(0, begin=behind)
        return Draft.chain(found)

    def _place(self) -> int:
        """A cell for what is drafted next."""
        cells = self._model.cells
        return int(cells.place([cells.next_position(0)], [(0,)])[0])

    def _logits_behind(self, text: Sequence[int]) -> Array:
        """Read what there is of the text that was not read yet; float32 [vocab] behind its end."""
        pairs = list(zip(self._model.cells.of(0).tolist(), text[1:], strict=True))
        alike = zip(self._read, pairs[:-1], strict=False)
        begin = next((i for i, (old, new) in enumerate(alike) if old != new), None)
        if begin is None:
            begin = min(len(self._read), len(pairs) - 1)
        self._read, size = self._read[:begin], self._model.limits["tokens"]
        logits, goal = np.empty(0, np.float32), self._place()
        for first in range(begin, len(pairs), size):
            part = pairs[first : first + size]
            last = first + len(part) == len(pairs)
            own, following = zip(*part, strict=True)
            logits = self._run(following, own, goal if last else None)
            self._read += part
        return logits

    def _run(self, following: Sequence[int], own: Sequence[int], goal: int | None) -> Array:
        """Tokens behind those that cells of the text, or of the draft, hold; of the last of them
        the logits [vocab], if what the block makes of it has a `goal`."""
        model, count, outputs = self._model, len(own), int(goal is not None)
        assert model.ahead
        inputs, positions = model.ahead.inputs, model.cells.positions[list(own)]
        with model.alone():
            for name, values in (("tokens", following), ("cells", own), ("positions", positions)):
                inputs[name][:count] = values
            ends = np.searchsorted(model.cells.positions_of(0), positions, side="right")
            inputs["spans"][:count] = np.stack([0 * ends, 0 * ends, ends], axis=1)
            inputs["rows"][:outputs], inputs["next_cells"][:outputs] = count - 1, goal or 0
            model.ahead.resize(tokens=count, outputs=outputs)
            model.ahead.run()
            return np.array(model.ahead.logits[0])
