"""Laws of any model: threads, chunks, batches and cell placement change no bit.

Modules that import them define the fixture `subject` to run them on.
"""

from contextlib import closing
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.support.models.steps import rows
from engine.model import Model
from engine.options import Options

LENGTH = 21
SEQUENCES = 4
ROOM = {"context": 96, "batch": 64, "outputs": 64, "sequences": SEQUENCES, "threads": 1}
FEWER = settings(max_examples=max(1, settings.default.max_examples // 4))


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on one thread, texts, and the logits after every token of each, in one step."""

    path: Path
    options: dict[str, Any]
    model: Model
    texts: list[list[int]]
    truth: list[list[bytes]]

    def with_options(self, **options: Any) -> Model:
        return Model(self.path, Options(**{**self.options, **options}))


def subject_of(path: Path, options: dict[str, Any]) -> Subject:
    model = Model(path, Options(**options))
    rng = np.random.default_rng(4)
    texts = [rng.integers(0, model.config.vocab, LENGTH).tolist() for _ in range(SEQUENCES)]
    truth = []
    for text in texts:
        model.cells.clear()
        truth.append(run(model, text))
    return Subject(path, options, model, texts, truth)


def run(model: Model, tokens: list[int], start: int = 0, sequence: int = 0) -> list[bytes]:
    """One step; the bits of the logits after each token."""
    return [row.tobytes() for row in rows(model, tokens, start, sequence)]


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads(subject: Subject, threads: int) -> None:
    """Any number of threads gives the bits of one, for a prompt and token by token."""
    with closing(subject.with_options(threads=threads)) as model:
        text, truth = subject.texts[0], subject.truth[0]
        assert run(model, text) == truth
        model.cells.clear()
        for position, token in enumerate(text[:8]):
            assert run(model, [token], position) == [truth[position]]


@FEWER
@given(cuts=st.sets(st.integers(1, LENGTH - 1)))
def test_chunks(subject: Subject, cuts: set[int]) -> None:
    """For any split of a prompt into chunks, every token's logits are the same."""
    model, text = subject.model, subject.texts[0]
    model.cells.clear()
    edges = [0, *sorted(cuts), LENGTH]
    found = [row for a, b in pairwise(edges) for row in run(model, text[a:b], a)]
    assert found == subject.truth[0]


@pytest.mark.parametrize("batch", [1, 2, 5, 64])
def test_batch_limit(subject: Subject, batch: int) -> None:
    """The maximum batch and the cache size do not affect the result."""
    room = {"batch": batch, "outputs": 3, "context": LENGTH + batch}
    with closing(subject.with_options(**room)) as model:
        rows: list[bytes] = []
        model.evaluate(
            subject.texts[0], 0, every=True, each=lambda p: rows.extend(r.tobytes() for r in p)
        )
        assert rows == subject.truth[0]
        model.cells.clear()
        assert model.evaluate(subject.texts[0], 0).tobytes() == subject.truth[0][-1]


@FEWER
@given(data=st.data())
def test_batched_or_alone(subject: Subject, data: st.DataObject) -> None:
    """Tokens of several sequences in one step, in any order, give what each gives alone."""
    model = subject.model
    lengths = data.draw(st.lists(st.integers(0, 16), min_size=SEQUENCES, max_size=SEQUENCES))
    where = [(s, p) for s, length in enumerate(lengths) for p in range(length)]
    where = data.draw(st.permutations(where))
    model.cells.clear()
    logits = model.step(
        [subject.texts[s][p] for s, p in where],
        [p for _, p in where],
        [(s,) for s, _ in where],
        range(len(where)),
    )
    assert [row.tobytes() for row in logits] == [subject.truth[s][p] for s, p in where]


@FEWER
@given(wanted=st.lists(st.integers(0, LENGTH - 1), max_size=2 * LENGTH))
def test_wanted_rows(subject: Subject, wanted: list[int]) -> None:
    """Requesting some tokens' logits, in any order, gives the rows of requesting all."""
    model = subject.model
    model.cells.clear()
    logits = model.step(subject.texts[0], range(LENGTH), [(0,)] * LENGTH, wanted)
    assert [row.tobytes() for row in logits] == [subject.truth[0][t] for t in wanted]


@FEWER
@given(kept=st.integers(0, LENGTH - 1), again=st.integers(1, LENGTH))
def test_removed_and_evaluated_anew(subject: Subject, kept: int, again: int) -> None:
    """A sequence truncated to a prefix and continued equals one without the removed tokens."""
    model, text = subject.model, subject.texts[0]
    model.cells.clear()
    run(model, text[:kept] + subject.texts[1][kept:])
    model.cells.remove(0, begin=kept)
    assert run(model, text[kept:], kept) == subject.truth[0][kept:]
    model.cells.remove(0, begin=LENGTH - again)
    assert run(model, text[-again:], LENGTH - again) == subject.truth[0][-again:]


@pytest.mark.parametrize("shared", [1, 7, LENGTH - 1])
def test_copied_prefix(subject: Subject, shared: int) -> None:
    """Sequences that share a prefix's cells continue as if each had evaluated it itself."""
    model = subject.model
    prefix = subject.texts[0][:shared]
    tails = [text[shared:] for text in subject.texts]
    alone = []
    for tail in tails:
        model.cells.clear()
        alone.append(run(model, prefix + tail)[shared:])
    model.cells.clear()
    run(model, subject.texts[0])
    for other in range(1, SEQUENCES):
        model.cells.copy(0, other, end=shared)
    model.cells.remove(0, begin=shared)
    for step in range(LENGTH - shared):
        position = shared + step
        together = model.step(
            [tail[step] for tail in tails],
            [position] * SEQUENCES,
            [(s,) for s in range(SEQUENCES)],
            range(SEQUENCES),
        )
        assert [row.tobytes() for row in together] == [rows[step] for rows in alone]
        if step == 0:
            assert model.cells.free == 96 - shared - SEQUENCES


def test_tree_of_tokens(subject: Subject) -> None:
    """One step over a tree, its trunk in all sequences and each branch in its own, gives every
    token the logits of its own path."""
    model, trunk = subject.model, subject.texts[0][:6]
    everyone = tuple(range(SEQUENCES))
    branches = [text[6:10] for text in subject.texts]
    alone = []
    for branch in branches:
        model.cells.clear()
        alone.append(run(model, trunk + branch))
    model.cells.clear()
    logits = model.step(
        [*trunk, *chain(*branches)],
        [*range(6), *(list(range(6, 10)) * SEQUENCES)],
        [everyone] * 6 + [(s,) for s in range(SEQUENCES) for _ in range(4)],
        range(6 + 4 * SEQUENCES),
    )
    rows = [row.tobytes() for row in logits]
    assert rows[:6] == alone[0][:6]
    assert [rows[6 + 4 * s : 10 + 4 * s] for s in everyone] == [rows[6:] for rows in alone]


@FEWER
@given(data=st.data())
def test_fragmented_cache(subject: Subject, data: st.DataObject) -> None:
    """Wherever in the cache a sequence's cells lie, its logits are the same."""
    model = subject.model
    model.cells.clear()
    other = st.integers(1, SEQUENCES - 1)
    for _ in range(data.draw(st.integers(0, 6))):
        s = data.draw(other)
        start = model.cells.next_position(s)
        length = data.draw(st.integers(1, 12))
        if model.cells.free >= length + LENGTH:
            run(model, (subject.texts[s] * 9)[start : start + length], start, s)
        begin = data.draw(st.integers(0, 40))
        model.cells.remove(data.draw(other), begin, begin + data.draw(st.integers(0, 20)))
    half = data.draw(st.integers(1, LENGTH - 1))
    rows = run(model, subject.texts[0][:half])
    model.cells.remove(data.draw(other))
    rows += run(model, subject.texts[0][half:], half)
    assert rows == subject.truth[0]


def test_steps_repeat(subject: Subject) -> None:
    """The same step again gives the same bits, as does a second model of the same file."""
    model = subject.model
    model.cells.clear()
    assert run(model, subject.texts[0]) == subject.truth[0]
    with closing(subject.with_options()) as second:
        assert run(second, subject.texts[0]) == subject.truth[0]
