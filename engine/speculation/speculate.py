"""Generation with drafts: one step of the target for several tokens.

Every token of the text is sampled from the target's logits by the completion's own sampler, in the
text's order, exactly as without drafts; a draft only says behind which tokens logits are computed
ahead. As these are the same bits in any company, so is the text, greedy or seeded. Drafts drawn
from a distribution are verified by rejection instead (verification.py), which accepts more of them:
the text is then another of the same distribution.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.checks import NumericalError
from engine.config import ModelError
from engine.generation.completion import Completion, Piece
from engine.generation.timings import Drafting
from engine.model import Model
from engine.sampling.sampler import Row
from engine.speculation import cache_tree
from engine.speculation.adaptive import AdaptiveLength
from engine.speculation.drafter import TEXT, Draft, Drafter, Verified
from engine.speculation.verification import Verifier
from reference.op import Array

NOTHING = Draft()


class Speculation:
    """A drafter at work for a target model, whose sequence 0 holds the text.

    Drafts have at most `most` tokens on at most so many `branches`; `adaptive`: as many, up to
    that, as measurement says are worth it. `verifier`: for drafts that are drawn.
    """

    def __init__(
        self,
        model: Model,
        drafter: Drafter,
        most: int,
        branches: int,
        adaptive: bool,
        verifier: Verifier | None = None,
    ) -> None:
        self._model, self._drafter, self.verifier = model, drafter, verifier
        self._most = min(most, model.limits["tokens"] - 1, model.limits["outputs"] - 1)
        if states := model.cells.states:  # one behind every token, or none could be dropped
            self._most = min(self._most, max(0, states.spare - 1))
        self._branches = min(branches, model.options.sequences - 1)
        self._length = AdaptiveLength(self._most) if adaptive else None
        self._settled_in = 0.0  # seconds
        self.begin([])

    def begin(self, prompt: Sequence[int]) -> None:
        """A text begins."""
        self._text = list(prompt)
        self._begun = False
        self._draft, self._node = NOTHING, TEXT
        self._kept = {TEXT: TEXT}  # nodes of the drafter's by those of what was run
        self._children: dict[tuple[int, int], int] = {}
        self._rows: Array | None = None  # logits of the text's last token and of each node
        self._taken: list[int] = []  # sampled from them, or while drafts rest
        # tokens that go on as if there were no drafts, whichever text they are of
        self._resting = self._length.rest() if self._length else 0
        self._foretold = 0  # of these, those that the draft has
        self.timings = Drafting()

    def has_room(self, completion: Completion) -> bool:
        """Whether the draft has what the text goes on with, or there is a cell for it, with those
        of a draft that has not."""
        if self._is_ahead(completion.tokens[-1]):
            return True
        self.settle()
        return self._model.cells.free > 0

    def run(self, completion: Completion) -> Row:
        """The logits [vocab] behind the text's last token, which the draft has, or a step gives."""
        token = completion.tokens[-1]
        return self._go_on(token) if self._is_ahead(token) else self._step(completion)

    def sample(self, completion: Completion, row: Row) -> Piece:
        """The completion's next token, from the logits [vocab] behind its last."""
        if self.verifier:
            assert isinstance(row, np.ndarray)
            sampler = completion.sampler
            sampled = self.verifier.sample(sampler, row, self._draft, self._node)
            piece = completion.take(sampled)
        else:
            piece = completion.sample(row)
        token = completion.tokens[-1]
        self._text.append(token)
        self._taken.append(token)
        drafted = self._is_ahead(token)
        self._foretold += drafted
        return replace(piece, drafted=True) if drafted else piece

    def _is_ahead(self, token: int) -> bool:
        """Whether the logits behind this token, the last sampled, are there."""
        return (self._node, token) in self._children

    def _go_on(self, token: int) -> Array:
        """Take them."""
        assert self._rows is not None
        self._node = self._children[self._node, token]
        return np.asarray(self._rows[1 + self._node])

    def settle(self) -> None:
        """Drop what the text did not take of the last draft, and tell the drafter."""
        if self._rows is None:
            return
        started = time.perf_counter()
        draft, rows, kept, taken = self._draft, self._rows, self._kept, tuple(self._taken)
        accepted = self._foretold
        self._rows, self._children, self._taken, self._foretold = None, {}, [], 0
        cache_tree.keep(self._model.cells, draft, self._node, self._last)
        self.timings.add(cache_tree.depth(draft), len(draft), accepted, len(taken))
        self._drafter.verified(
            Verified(taken, lambda node: int(rows[1 + kept.get(node, TEXT)].argmax()))
        )
        if self._length and self._in_full:
            # a draft costs what is done here as well, which who drafts nothing has not to do
            seconds = self._step_seconds + (self._settled_in if self._asked else 0)
            self._length.record(self._asked, accepted, self._draft_seconds, seconds)
            self._resting = self._length.rest()
        self._settled_in = time.perf_counter() - started

    def _step(self, completion: Completion) -> Array:
        """Run the text's last token, and with it a draft of what may follow, of as many tokens as
        the completion may still have at most; the last token's logits [vocab]."""
        cells, most = self._model.cells, completion.params.max_tokens
        left = cells.capacity if most is None else most - len(completion.tokens) - 1
        if not self._begun:
            self._drafter.begin(self._text)
            if self.verifier:
                self.verifier.begin(completion.params.seed, len(self._text))
            self._begun, self._taken = True, []
        if self._resting:
            return self._rest()
        if self._taken:  # while drafts rested
            last = self._text[-1]
            self._drafter.verified(Verified(tuple(self._taken), lambda _: last))
            self._taken = []
        started = time.perf_counter()
        self._asked = self._length.choose() if self._length else self._most
        room = min(self._asked, cells.free - 1) if left > 0 else 0
        self._in_full = room == self._asked <= left
        draft = self._drafter.draft(self._text, room) if room > 0 else NOTHING
        if cache_tree.is_chain(draft):
            room = min(room, left)
        self._draft, self._kept = cache_tree.pruned(draft, room, self._branches)
        draft = self._draft
        drafted = time.perf_counter()
        self._last = cells.next_position(0)
        try:
            self._rows = self._run(draft)
        except (ModelError, NumericalError):  # of tokens that the text may never have
            if not draft:
                raise
            self._draft, self._kept = draft, _ = cache_tree.pruned(draft, 0, 0)
            self._rows = self._run(draft)
        done = time.perf_counter()
        self._draft_seconds, self._step_seconds = drafted - started, done - drafted
        self.timings.draft.seconds += self._draft_seconds
        self.timings.verify.seconds += self._step_seconds
        self._node = TEXT
        nodes = zip(draft.parents, draft.tokens, strict=True)
        self._children = {child: node for node, child in enumerate(nodes)}
        return np.asarray(self._rows[0])

    def _rest(self) -> Array:
        """Run the text's last token as if there were no drafts; its logits [vocab]."""
        assert self._length
        self._draft, self._node = NOTHING, TEXT
        started = time.perf_counter()
        position = self._model.cells.next_position(0)
        logits = self._model.step(self._text[-1:], (position,), ((0,),), (0,))
        seconds = time.perf_counter() - started
        self._resting -= 1
        self._length.rested(seconds)
        self.timings.verify.seconds += seconds
        self.timings.add(0, 0, 0, 1)
        return np.asarray(logits[0])

    def _run(self, draft: Draft) -> Array:
        """The text's last token and a draft behind it: logits [1 + nodes, vocab]."""
        cells = self._model.cells
        cache_tree.enter(cells, draft)
        try:
            return self._model.step(
                (self._text[-1], *draft.tokens),
                cache_tree.positions(draft, self._last),
                cache_tree.sequences(draft),
                range(1 + len(draft)),
            )
        except BaseException:
            cache_tree.leave(cells, draft)
            raise
