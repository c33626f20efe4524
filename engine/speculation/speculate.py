"""Generation with drafts: one step of the target for several tokens.

Every token is sampled from the target's logits by the completion's own sampler, in order, exactly
as without drafts; a draft only determines for which tokens logits are computed in advance. As
logits do not depend on the batch, the text is the same, greedy or seeded. Drafts sampled from a
distribution are verified by rejection sampling instead (verification.py), which accepts more: the
text then differs, but has the same distribution.
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
from engine.speculation.drafter import TEXT, Draft, Drafter, Verification
from engine.speculation.verification import Verifier
from reference.op import Array

EMPTY = Draft()


class Speculation:
    """Speculative decoding for a target model, whose sequence 0 holds the text.

    Drafts have at most `most` tokens on at most `branches` branches; `adaptive` chooses their
    length. `verifier` is for sampled drafts.
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
        if states := model.cells.states:  # one for every token, for rollback
            self._most = min(self._most, max(0, states.spare - 1))
        self._branches = min(branches, model.options.sequences - 1)
        self._length = AdaptiveLength(self._most) if adaptive else None
        self._drop_seconds = 0.0  # seconds
        self.begin([])

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a text."""
        self._text = list(prompt)
        self._begun = False
        self._draft, self._node = EMPTY, TEXT
        self._kept = {TEXT: TEXT}  # evaluated nodes by the drafter's nodes
        self._children: dict[tuple[int, int], int] = {}
        self._rows: Array | None = None  # logits of the text's last token and of each node
        self._taken: list[int] = []  # sampled from them, or during a rest
        # plain steps left before drafting again, across texts
        self._plain_left = self._length.plain_steps() if self._length else 0
        self._accepted = 0  # how many of these were drafted
        self.timings = Drafting()

    def has_room(self, completion: Completion) -> bool:
        """Whether the draft contains the last token, or there is a free cell once the draft is
        dropped."""
        if self._has_logits(completion.tokens[-1]):
            return True
        self.drop_drafts()
        return self._model.cells.free > 0

    def run(self, completion: Completion) -> Row:
        """Logits [vocab] after the text's last token, from the draft or from a step."""
        token = completion.tokens[-1]
        return self._advance(token) if self._has_logits(token) else self._step(completion)

    def sample(self, completion: Completion, row: Row) -> Piece:
        """Sample the completion's next token from logits [vocab]."""
        if self.verifier:
            assert isinstance(row, np.ndarray)
            sampler = completion.sampler
            sampled = self.verifier.sample(sampler, row, self._draft, self._node)
            piece = completion.append(sampled)
        else:
            piece = completion.sample(row)
        token = completion.tokens[-1]
        self._text.append(token)
        self._taken.append(token)
        drafted = self._has_logits(token)
        self._accepted += drafted
        return replace(piece, drafted=True) if drafted else piece

    def _has_logits(self, token: int) -> bool:
        """Whether logits after this token, the last sampled one, are available."""
        return (self._node, token) in self._children

    def _advance(self, token: int) -> Array:
        """Move to this token's node; returns its logits."""
        assert self._rows is not None
        self._node = self._children[self._node, token]
        return np.asarray(self._rows[1 + self._node])

    def drop_drafts(self) -> None:
        """Drop rejected draft tokens from the cache, and inform the drafter."""
        if self._rows is None:
            return
        started = time.perf_counter()
        draft, rows, kept, taken = self._draft, self._rows, self._kept, tuple(self._taken)
        accepted = self._accepted
        self._rows, self._children, self._taken, self._accepted = None, {}, [], 0
        cache_tree.commit(self._model.cells, draft, self._node, self._last)
        self.timings.add(cache_tree.depth(draft), len(draft), accepted, len(taken))
        self._drafter.verified(
            Verification(taken, lambda node: int(rows[1 + kept.get(node, TEXT)].argmax()))
        )
        if self._length and self._in_full:
            # settling the last draft is part of a draft's cost
            seconds = self._step_seconds + (self._drop_seconds if self._asked else 0)
            self._length.record(self._asked, accepted, self._draft_seconds, seconds)
            self._plain_left = self._length.plain_steps()
        self._drop_seconds = time.perf_counter() - started

    def _step(self, completion: Completion) -> Array:
        """Evaluate the text's last token together with a draft, limited by the completion's
        max_tokens; returns the last token's logits [vocab]."""
        cells, most = self._model.cells, completion.params.max_tokens
        left = cells.capacity if most is None else most - len(completion.tokens) - 1
        if not self._begun:
            self._drafter.begin(self._text)
            if self.verifier:
                self.verifier.begin(completion.params.seed, len(self._text))
            self._begun, self._taken = True, []
        if self._plain_left:
            return self._plain_step()
        if self._taken:  # during a rest
            last = self._text[-1]
            self._drafter.verified(Verification(tuple(self._taken), lambda _: last))
            self._taken = []
        started = time.perf_counter()
        self._asked = self._length.choose() if self._length else self._most
        room = min(self._asked, cells.free - 1) if left > 0 else 0
        self._in_full = room == self._asked <= left
        draft = self._drafter.draft(self._text, room) if room > 0 else EMPTY
        if cache_tree.is_chain(draft):
            room = min(room, left)
        self._draft, self._kept = cache_tree.prune(draft, room, self._branches)
        draft = self._draft
        drafted = time.perf_counter()
        self._last = cells.next_position(0)
        try:
            self._rows = self._run(draft)
        except (ModelError, NumericalError):  # caused by draft tokens, maybe
            if not draft:
                raise
            self._draft, self._kept = draft, _ = cache_tree.prune(draft, 0, 0)
            self._rows = self._run(draft)
        done = time.perf_counter()
        self._draft_seconds, self._step_seconds = drafted - started, done - drafted
        self.timings.draft.seconds += self._draft_seconds
        self.timings.verify.seconds += self._step_seconds
        self._node = TEXT
        nodes = zip(draft.parents, draft.tokens, strict=True)
        self._children = {child: node for node, child in enumerate(nodes)}
        return np.asarray(self._rows[0])

    def _plain_step(self) -> Array:
        """Evaluate the text's last token without a draft; returns its logits [vocab]."""
        assert self._length
        self._draft, self._node = EMPTY, TEXT
        started = time.perf_counter()
        position = self._model.cells.next_position(0)
        logits = self._model.step(self._text[-1:], (position,), ((0,),), (0,))
        seconds = time.perf_counter() - started
        self._plain_left -= 1
        self._length.record_plain_step(seconds)
        self.timings.verify.seconds += seconds
        self.timings.add(0, 0, 0, 1)
        return np.asarray(logits[0])

    def _run(self, draft: Draft) -> Array:
        """Evaluate the text's last token and a draft: logits [1 + nodes, vocab]."""
        cells = self._model.cells
        cache_tree.fork(cells, draft)
        try:
            return self._model.step(
                (self._text[-1], *draft.tokens),
                cache_tree.positions(draft, self._last),
                cache_tree.sequences(draft),
                range(1 + len(draft)),
            )
        except BaseException:
            cache_tree.drop_leaves(cells, draft)
            raise
