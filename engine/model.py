"""A loaded model: runs steps on batches of tokens, with a KV cache."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from engine.checks import check_argmax, check_finite, check_step
from engine.compile.executable import Executable, stepped
from engine.compile.plan import CpuStep, Plan
from engine.config import ModelError
from engine.errors import BusyError, ClosedError
from engine.gguf.file import GGUFFile
from engine.gpu.launched_step import LaunchedStep
from engine.load import load
from engine.offload.offload import Offload, StreamedPlan
from engine.options import Options
from engine.passes.fuse import GpuStep
from engine.sampling.sampler import Row
from reference.op import Array


def block_index(name: str) -> int:
    """Index of the block in a value's name."""
    return int(name.split(".")[1])


class Model:
    """Maps batches of tokens to logits; knows nothing of text or sampling.

    `graph` is the step's graph after the options' passes, `memory` its arrays by name, and
    `executable` runs it.
    """

    def __init__(
        self,
        source: str | Path | GGUFFile,
        options: Options | None = None,
        samplers: Sequence[str] = (),
    ) -> None:
        """`source` is a path, or an open file, which the model then owns. Kernels for the ops of
        `samplers` are certified along with its own."""
        self.options, self._stepping, self._closing = options or Options(), threading.Lock(), False
        with ExitStack() as resources:
            opened = source if isinstance(source, GGUFFile) else GGUFFile(source)
            self.file = resources.enter_context(opened)
            loaded = load(self.file, self.options, samplers, resources)
            self._resources = resources.pop_all()
        self.metadata, self.config, self.device = self.file.metadata, loaded.config, loaded.device
        self.limits, self.cells, self.team = loaded.limits, loaded.cells, loaded.team
        self.dispatcher, self._notes, built = loaded.dispatcher, loaded.notes, loaded.built
        self.graph, self.memory = built.graph, built.memory
        self.caches, self.states, self.pages = built.caches, built.states, built.pages
        self.mtp_blocks, self.method = loaded.mtp_blocks, self.cells.method
        self.executable: Executable | None = loaded.executable
        self.latest: LaunchedStep | None = None  # the last step, if it was begun asynchronously
        self.threshold = self.config.sparsity.threshold if self.config.sparsity else 0.0

    def set_threshold(self, threshold: float) -> None:
        """Set the threshold of the sparsity predictors, from the next step on."""
        if not self.config.sparsity:
            raise ModelError(f"{self.file.path}: no block runs sparse, so there is no threshold")
        if np.isnan(threshold):
            raise ModelError("the sparse threshold is nan, not a number")
        assert self.executable
        for i in self.config.sparsity.ranks:
            self.executable.set(f"blk.{i}.mask", "threshold", threshold)
        self.threshold = float(threshold)

    def close(self) -> None:
        """Release threads and memory; waits for a step in another thread."""
        self._closing = True
        with self._stepping:
            self._resources.close()
            self.executable, self.mtp_blocks = None, []
            for name in ("caches", "states", "pages", "memory"):
                self.__dict__.pop(name, None)

    @property
    def plan(self) -> Plan:
        """The plan of a decode step, for a model on the CPU alone."""
        return self.plan_for(1)

    def plan_for(self, tokens: int) -> Plan:
        """The plan of a step of this many tokens, for a model on the CPU alone."""
        if self.executable is None or (plan := self.executable.plan_for(tokens)) is None:
            raise ModelError(f"{self.file.path}: no single plan: the model is on a GPU, or closed")
        return plan

    @property
    def cache_bytes(self) -> int:
        """Size of the KV cache in all blocks."""
        cells = sum(self.method.held(block_index(n)) * c.shape[1] for n, c in self.caches.items())
        return int(cells + self.method.packed * sum(p.shape[1] for p in self.pages.values()))

    @property
    def offload(self) -> Offload | None:
        """Weight streaming from disk, for a model with a memory budget."""
        return self.executable.offload if isinstance(self.executable, StreamedPlan) else None

    @property
    def steps(self) -> Sequence[CpuStep | GpuStep]:
        """A step's nodes with their kernels, in order; then those of prefill, if different."""
        return self.executable.steps if self.executable else []

    @property
    def notes(self) -> list[str]:
        """Deviations to report, such as refused kernels and blocks run dense."""
        return [*self.dispatcher.notes, *self._notes]

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        wanted: Sequence[int] = (),
    ) -> Array:
        """Run a batch of tokens, within `limits`; returns the `wanted` ones' logits, float32
        [wanted, vocab], valid until the next step.

        Each token has a position and belongs to one or more sequences; it attends to the cells of
        its first sequence up to its own position.
        """
        with self._ran_step(tokens, positions, sequences, wanted) as ready:
            return check_finite(ready.logits[: len(wanted)], positions, wanted)

    def hidden(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        wanted: Sequence[int],
    ) -> Array:
        """Like `step`, but returns the last hidden states, float32 [wanted, hidden]: the final
        norm's results, from which logits are computed."""
        self.check_hidden()
        with self._ran_step(tokens, positions, sequences, wanted) as ready:
            return self._hidden(ready, positions, wanted)

    def check_hidden(self) -> None:
        """Raise `ModelError` if `hidden` is not supported."""
        if self.device:
            raise ModelError(f"{self.file.path}: hidden states need the CPU: load without a GPU")

    def _hidden(self, ready: Executable, positions: Sequence[int], wanted: Sequence[int]) -> Array:
        assert ready.hidden is not None
        return check_finite(ready.hidden[: len(wanted)], positions, wanted, "hidden states")

    def rows(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        wanted: Sequence[int],
        argmax_bans: Sequence[Collection[int]] | None,
        hidden: Collection[int] = (),
    ) -> Sequence[Row]:
        """Like `step`, but a list of rows [vocab]. If a GPU has the logits and only their argmax
        is needed, unless it is one of a row's banned tokens, it is computed there. Rows at the
        indices in `hidden` are hidden states [hidden] instead of logits."""
        with self._ran_step(tokens, positions, sequences, wanted, argmax_bans is not None) as ready:
            if argmax_bans is not None and ready.greedy:
                found = ready.greedy.of(len(wanted))()
                chosen = check_argmax(found, [positions[i] for i in wanted])
                both = list(zip(chosen, argmax_bans, strict=True))
                if not any(row.token in bans for row, bans in both):
                    return chosen
                return [
                    logits if row.token in bans else row
                    for logits, (row, bans) in zip(ready.logits, both, strict=False)
                ]
            rows = list(check_finite(ready.logits[: len(wanted)], positions, wanted))
            if hidden:
                states = self._hidden(ready, positions, wanted)
                rows = [states[i] if i in hidden else row for i, row in enumerate(rows)]
            return rows

    @contextmanager
    def _ran_step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        wanted: Sequence[int],
        argmax: bool = False,
    ) -> Iterator[Executable]:
        """Run a step; its cells are committed if no error occurs within the context."""
        with self.exclusive() as ready:
            check_step(self.config, self.limits, tokens, positions, sequences, wanted)
            self.latest = None
            with stepped(ready, self.cells, tokens, positions, sequences, wanted, argmax):
                yield ready

    @contextmanager
    def exclusive(self) -> Iterator[Executable]:
        """Exclude steps by other threads and closing the model."""
        acquired = self._stepping.acquire(blocking=False)
        try:
            if (ready := self.executable) is None or self._closing:
                raise ClosedError(f"{self.file.path}: the model was closed")
            if not acquired:
                raise BusyError("this engine is running a step in another thread")
            yield ready
        finally:
            if acquired:
                self._stepping.release()

    def evaluate(
        self,
        tokens: Sequence[int],
        start: int,
        sequence: int = 0,
        every: bool = False,
        each: Callable[[Array], None] | None = None,
    ) -> Array:
        """Run consecutive tokens of one sequence from position `start`, in chunks that fit.

        Returns the last token's logits, float32 [vocab]; with `every`, calls `each` with the logits
        [n, vocab] of all tokens of each chunk.
        """
        if not len(tokens):
            raise ModelError("there is no token to evaluate")
        chunk = self.limits["outputs"] if every else self.limits["tokens"]
        logits = np.empty((0, self.config.vocab), np.float32)
        for first in range(0, len(tokens), chunk):
            part = tokens[first : first + chunk]
            last = first + len(part) == len(tokens)
            wanted = range(len(part)) if every else [len(part) - 1] if last else []
            where = range(start + first, start + first + len(part))
            logits = self.step(part, where, [(sequence,)] * len(part), wanted)
            if each:
                each(logits)
        return np.asarray(logits[-1])
