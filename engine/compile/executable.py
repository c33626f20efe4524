"""The interface of whatever runs a step: a graph on its devices."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from engine.cache.cells import Cells
from engine.cache.method import Step
from engine.compile.plan import CpuStep, Plan
from engine.gpu.greedy import CHOICES, Greedy
from engine.passes.fuse import GpuStep
from kernels.kernel import PROMPT
from reference.op import Array


class Executable(Protocol):
    """A step: write its tokens and their metadata to `inputs`, set its sizes, run, and read
    `logits` float32 [outputs, vocab]; or `hidden` float32 [outputs, hidden], the input of the
    output layer, where that is kept. `steps` are the nodes with kernels, in execution order."""

    @property
    def steps(self) -> Sequence[CpuStep | GpuStep]: ...

    @property
    def inputs(self) -> Mapping[str, Array]: ...

    @property
    def logits(self) -> Array: ...

    @property
    def hidden(self) -> Array | None: ...

    def resize(self, **sizes: int) -> None:
        """Set the named sizes of the next step."""

    def set(self, label: str, name: str, value: float) -> None:
        """Set a node's scalar from the next step on."""

    @property
    def greedy(self) -> Greedy | None:
        """The device's node that finds the argmax of the logits, if it has one; a step then has the
        size CHOICES."""

    def plan_for(self, tokens: int) -> Plan | None:
        """The plan that runs a step of so many tokens, if it runs on the CPU alone."""

    def run(self) -> None:
        """Run one step with the current sizes and inputs."""


class ByTokens:
    """Plans for decoding and for prompts (PROMPT tokens or more), each with the kernels for that
    case. Both have the same inputs."""

    def __init__(self, few: Plan, many: Plan) -> None:
        self.few, self.many = few, many
        self.steps, self.inputs = [*few.steps, *many.steps], few.inputs
        self._next, self.greedy = few, None

    def plan_for(self, tokens: int) -> Plan:
        return self.many if tokens >= PROMPT else self.few

    def resize(self, **sizes: int) -> None:
        self._next = self.plan_for(sizes["tokens"])
        self._next.resize(**sizes)

    def set(self, label: str, name: str, value: float) -> None:
        for plan in (self.few, self.many):
            plan.set(label, name, value)

    def run(self) -> None:
        self._next.run()

    @property
    def logits(self) -> Array:
        return self._next.logits

    @property
    def hidden(self) -> Array | None:
        return self._next.hidden


@contextmanager
def stepped(
    ready: Executable,
    cells: Cells,
    tokens: Sequence[int],
    positions: Sequence[int],
    sequences: Sequence[Sequence[int]],
    wanted: Sequence[int],
    argmax: bool = False,
) -> Iterator[None]:
    """Run a step, or start it on a device; its tokens enter the cache if nothing fails until its
    end. Of the outputs only the `argmax` is wanted if the device finds it."""
    count, outputs = len(tokens), len(wanted)
    cells.method.before_step()
    chosen = cells.place(positions, sequences)
    try:
        spans = cells.spans(positions, sequences)
        given: dict[str, Any] = {
            "tokens": tokens,
            "positions": positions,
            "cells": chosen,
            "spans": spans,
        }
        given |= cells.method.inputs(Step(ready.inputs, chosen, spans, np.asarray(positions)))
        if cells.window:
            given["window_spans"] = cells.cut_to_window(spans, positions)
        if cells.states:
            order, sources, targets = cells.state_routes(chosen, spans)
            given = {name: np.asarray(values)[order] for name, values in given.items()}
            given |= {"sources": sources, "targets": targets}
            wanted = np.argsort(order)[list(wanted)].tolist()
        of_blocks = [name for name in ready.inputs if name.startswith("tokens.")]
        for i, name in enumerate(of_blocks):  # rows of blocks' own embeddings
            given[name] = np.asarray(given["tokens"]) * len(of_blocks) + i
        for name, values in given.items():
            ready.inputs[name][: len(values)] = values
        ready.inputs["rows"][:outputs] = wanted
        found = {CHOICES: outputs if argmax else 0} if ready.greedy else {}
        ready.resize(tokens=count, outputs=outputs, **found)
        ready.run()
        cells.method.after_step()
        yield
    except BaseException:  # Ctrl-C too: a step that did not finish leaves nothing in the cache
        cells.method.on_failure()
        cells.unplace(positions, sequences)
        raise
