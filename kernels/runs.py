"""Runs a kernel in every way that an engine could run it, over arrays guarded on both sides.

A run raises KernelError for writes beside an array, for two threads writing one element, for bits
that differ between runs, for exceptions and for changed rounding modes.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from kernels.call import bind, stages
from kernels.cpu.runtime.float_control import RAISED, SIGNATURE, read_control, restore_control
from kernels.cpu.runtime.share import pack_words
from kernels.cpu.runtime.team import Program, Team
from kernels.cpu.runtime.thread_errors import listen, stop_listening
from kernels.errors import KernelError
from kernels.guard import AT_END, Guarded
from kernels.kernel import Kernel
from kernels.knob import NONE_CHOSEN, Values
from reference.op import DTYPES, Arguments, Array, Case, Op, size_of

REPEATS = 3  # runs by real threads, all of which must give the same bits
LINE = 64  # bytes: alignment of packed weights
COUNTED = "scratch differs between two runs of the same"
MODES = "it left the floating-point control register changed"


def differing(one: Mapping[str, Array], other: Mapping[str, Array]) -> str:
    """The first array that differs in a bit. Signs of NaN are ignored: IEEE 754 leaves it open
    which operand's sign a sum of NaN takes."""
    return next((n for n in one if _differ(one[n], other[n])), "")


def _differ(one: Array, other: Array) -> bool:
    if one.tobytes() == other.tobytes():
        return False
    unlike = _bytes_differ(one, other)
    return one.dtype.kind != "f" or not (np.isnan(one) & np.isnan(other))[unlike].all()


def side_by_side(
    kernel: Kernel, case: Case, inputs: Arguments, rng: np.random.Generator, tuning: Values
) -> dict[str, Array]:
    """The outputs where all arrays lie in one block of memory filled with ordinary numbers, as
    earlier nodes leave it: no guard tells a kernel that it is being judged."""
    arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
    outputs: dict[str, Array] = {
        o.name: np.empty(o.dims(case.shape, case.format), DTYPES.get(o.dtype, np.uint8))
        for o in kernel.spec.outputs
    }
    places, end = dict[str, int](), 0
    for name, array in (arrays | outputs).items():
        places[name] = end
        end += -(-array.nbytes // LINE) * LINE
    memory = np.frombuffer(rng.standard_normal(end // 4 + LINE, np.float32), np.uint8)
    begin = -memory.ctypes.data % LINE

    def placed(name: str, like: Array) -> Array:
        first = begin + places[name]
        return memory[first : first + like.nbytes].view(like.dtype).reshape(like.shape)

    given = {**inputs, **{name: placed(name, array) for name, array in arrays.items()}}
    for name, array in arrays.items():
        given[name][...] = array
    results = {name: placed(name, output) for name, output in outputs.items()}
    bind(kernel, given, results, tuning)(1, (0,))
    return results


class Setup:
    """A CPU kernel over guarded arrays."""

    def __init__(
        self,
        kernel: Kernel,
        case: Case,
        inputs: Arguments,
        place: int,
        rng: np.random.Generator,
        tuning: Values = NONE_CHOSEN,
    ) -> None:
        self.kernel, self.case, self.place, self.rng = kernel, case, place, rng
        op, self._spare = kernel.spec, list[Guarded]()
        self._slots = {
            a.name: self._guarded(inputs[a.name].shape, inputs[a.name].dtype)
            for a in op.inputs
            if a.axes and not (kernel.pack and a.name == "weight")  # seen in packed form only
        }
        self._results = {
            o.name: self._guarded(
                o.dims(case.shape, case.format), np.dtype(DTYPES.get(o.dtype, np.uint8))
            )
            for o in op.outputs
        }
        self.outputs = {name: result.array for name, result in self._results.items()}
        self._packed: Guarded | None = None
        self._groups: list[Array] = []  # of a large weight: those that are not zero
        if kernel.pack:
            shape = kernel.pack.shape(inputs["weight"])
            self._packed = self._guarded(shape, np.uint8, LINE)
        self.inputs: Arguments = {}
        self.fill(inputs, case)
        arrays = {name: slot.array for name, slot in self._slots.items()}
        packed = self._packed.array if self._packed else None
        given = {**inputs, **arrays}
        called = stages(kernel, given, self.outputs, packed, self._allocate, tuning)
        self._buffers = [Guarded(b.shape, b.dtype, AT_END, rng) for _, b, _ in called]
        for slot, (_, args, _) in zip(self._buffers, called, strict=True):
            slot.put(args)
        self._calls = [(c[0], slot.array) for c, slot in zip(called, self._buffers, strict=True)]

    def _guarded(self, dims: tuple[int, ...], dtype: Any, boundary: int = 0) -> Guarded:
        return Guarded(dims, dtype, self.place, self.rng, boundary)

    def _allocate(self, dims: tuple[int, ...], dtype: Any) -> Array:
        self._spare.append(self._guarded(dims, dtype))
        self._spare[-1].poison(self.rng)
        return self._spare[-1].array

    def fill(self, inputs: Arguments, case: Case) -> None:
        """Load a case's arguments in place of the previous ones; scalars stay as they are."""
        scalars = {n: v for n, v in self.inputs.items() if not isinstance(v, np.ndarray)}
        self.inputs = {**inputs, **scalars}
        for name, slot in self._slots.items():
            slot.put(inputs[name], self._sampled(inputs[name], case) if name == "weight" else None)
        if self._packed:
            self._pack(inputs["weight"], case)

    def _pack(self, weight: Array, case: Case) -> None:
        """Pack the weight anew; of a large one only row groups that are not zero."""
        assert self.kernel.pack is not None
        assert self._packed is not None
        packing, packed = self.kernel.pack, self._packed.writable().reshape(-1)
        chosen = self._sampled(weight, case)
        if len(chosen) == len(weight):
            packed.fill(0xFF)
            for matrix, target in packing.matrices(weight, packed):
                args = packing.args_of(matrix, target)
                for thread in reversed(range(3)):
                    packing.share(args, thread, 3)
        elif weight.ndim == 3:  # rows that nobody asks for may hold anything
            packings = list(packing.matrices(weight, packed))
            for expert in chosen:
                packing.share(packing.args_of(*packings[expert]), 0, 1)
        else:
            for stale in self._groups:
                stale.fill(0)
            self._groups = list[Array]()
            for group in np.unique(chosen // packing.lanes):
                first = int(group) * packing.lanes
                some = np.ascontiguousarray(weight[first : first + packing.lanes])
                begin = packing.place(weight, first)
                part = packed[begin : begin + packing.place(weight, len(some))]
                packing.share(packing.args_of(some, part), 0, 1)
                self._groups.append(part)
        if not self._packed.intact:
            raise KernelError("packing wrote outside the packed weight")
        self._packed.lock()

    def _sampled(self, weight: Array, case: Case) -> Array:
        argument = next(a for a in self.kernel.spec.inputs if a.name == "weight")
        if argument.dtype != "format":
            return np.arange(len(weight))
        elements = [size_of(axis, case.shape) for axis in argument.axes[1:]]
        if weight.ndim == 3:
            return case.some_of(len(weight), math.prod(elements))
        return case.sampled(len(weight), elements[0])

    def poison(self, ordinary: bool = False) -> None:
        """Fill outputs with garbage, or with what precedes an update in place."""
        updated = dict(self.kernel.in_place)
        for name, result in self._results.items():
            if name in updated:
                result.array[...] = self.inputs[updated[name]]
            else:
                result.poison(self.rng, ordinary)

    def run(self, n_threads: int) -> dict[str, Array]:
        """The outputs of so many threads, run one after another."""
        self.poison()
        with self._watched():
            for share, args in self._calls:
                for thread in self.rng.permutation(n_threads):
                    share(args, int(thread), n_threads)
        return {name: output.copy() for name, output in self.outputs.items()}

    def run_again(self, before: Mapping[str, Array]) -> None:
        """A second run gives the same outputs and leaves the same scratch: a counter kept there, to
        misbehave later, would show."""
        left = self._scratch()
        if name := differing(before, self.run(1)):
            raise KernelError(f"{name} differs between two runs")
        if left != self._scratch():
            raise KernelError(COUNTED)

    def _scratch(self) -> list[bytes]:
        return [slot.array.tobytes() for slot in self._spare]

    def run_team(self, n_threads: int) -> dict[str, Array]:
        """The outputs of so many threads at once, several times: first each thread does its own
        part, so that all run side by side; finally parts are taken by whoever comes first, as in
        the engine."""
        control = np.zeros((2, n_threads), np.uint32)
        before, after = (pack_words(SIGNATURE, {"control": row}) for row in control)
        entries = [(read_control, before), *self._calls, (read_control, after)]
        own = Program(entries, by_all=True)
        taken = Program(entries, by_all=[True, *[False] * len(self._calls), True])
        restored = Program([(restore_control, before)], by_all=True)  # the threads go on to others
        found, left = dict[str, Array](), list[bytes]()
        team = _team(n_threads, os.getpid())
        for repeat in range(REPEATS):
            self.poison(ordinary=repeat == 1)
            try:
                team.run(taken if repeat == REPEATS - 1 else own)
            except Exception as error:
                team.run(restored)
                raise KernelError(f"raised {type(error).__name__}: {error}") from None
            if _changed(control):
                team.run(restored)
                raise KernelError(MODES)
            self._check()
            once = {name: output.copy() for name, output in self.outputs.items()}
            if found and (name := differing(found, once)):
                raise KernelError(f"{name} differs between runs by {n_threads} threads at once")
            if found and left != self._scratch():
                raise KernelError(COUNTED)
            found, left = once, self._scratch()
        return found

    def run_apart(self, n_threads: int, whole: Mapping[str, Array]) -> None:
        """Run each thread of each stage alone: no two write to one element, and together they give
        the bits of one thread. A kernel that declares that it splits tokens must neither touch nor
        depend on other threads' tokens: no barrier separates such kernels."""
        self.poison()
        first = len(self._calls) - len(self.kernel.shares)
        with self._watched():
            for stage, (share, args) in enumerate(self._calls):
                if stage < first:  # rounding of activations is a kernel of its own
                    for thread in range(n_threads):
                        share(args, thread, n_threads)
                    continue
                self._stage_apart(share, args, n_threads)
        if name := differing(whole, self.outputs):
            raise KernelError(f"{name} is not what its {n_threads} threads write, each for itself")

    def _stage_apart(self, share: Any, args: Array, n_threads: int) -> None:
        before = {name: output.copy() for name, output in self.outputs.items()}
        written = {n: np.zeros(output.shape, bool) for n, output in self.outputs.items()}
        together = {name: output.copy() for name, output in self.outputs.items()}
        tokens = self.case.shape.get("tokens", 0)
        for thread in range(n_threads):
            own = slice(tokens * thread // n_threads, tokens * (thread + 1) // n_threads)
            for name, output in self.outputs.items():
                output[...] = before[name]
            with self._strange_tokens(own):
                share(args, thread, n_threads)
            for name, output in self.outputs.items():
                mine = _bytes_differ(output, before[name])
                if (mine & written[name]).any():
                    raise KernelError(f"{name}: two of {n_threads} threads write to one element")
                if self.kernel.splits and _tokens_first(self.kernel.spec, name):
                    mine_alone = mine.copy()
                    mine_alone[own] = False
                    if mine_alone.any():
                        raise KernelError(f"{name}: a thread wrote to tokens of others")
                written[name] |= mine
                together[name][mine] = output[mine]
        for name, output in self.outputs.items():
            output[...] = together[name]

    @contextmanager
    def _strange_tokens(self, own: slice) -> Iterator[None]:
        """Fill other threads' tokens with NaN, if the kernel declares that it splits tokens."""
        spoilt = [
            a.name
            for a in self.kernel.spec.inputs
            if self.kernel.splits and a.axes[:1] == ("tokens",) and a.dtype == "f32"
        ]
        for name in spoilt:
            strange = np.full_like(self.inputs[name], np.nan)
            strange[own] = self.inputs[name][own]
            self._slots[name].put(strange)
        yield
        for name in spoilt:
            self._slots[name].put(self.inputs[name])

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Run on this thread; an exception, changed control state or a stray write is a fault."""
        raised, control = list[BaseException](), np.zeros((2, 1), np.uint32)
        before, after = (pack_words(SIGNATURE, {"control": row}) for row in control)
        read_control(before)
        listen(raised)
        try:
            yield
        finally:
            stop_listening()
            read_control(after)
            if changed := _changed(control):
                restore_control(before)
        if raised:
            raise KernelError(f"raised {type(raised[0]).__name__}: {raised[0]}")
        if changed:
            raise KernelError(MODES)
        self._check()

    def _check(self) -> None:
        """Check that nothing was written around the arrays."""
        for name, slot in (self._results | self._slots).items():
            if not slot.intact:
                raise KernelError(f"{name} was written outside its bounds")
        if not all(slot.intact for slot in self._spare):
            raise KernelError("scratch was written outside its bounds")


@cache
def _team(n_threads: int, process: int) -> Team:
    """This process's team of so many threads: to begin threads for each case takes a fifth of a
    trial. Between cases they sleep, since other children of a batch of trials want the cores."""
    return Team(n_threads, alone=False)


def _changed(control: Array) -> bool:
    return bool(np.any((control[0] ^ control[1]) & ~np.uint32(RAISED)))


def _bytes_differ(one: Array, other: Array) -> Array:
    """Mask of elements that are not bit-identical."""
    word = f"u{one.itemsize}"
    return np.asarray(one.view(word) != other.view(word))


def _tokens_first(op: Op, name: str) -> bool:
    return next(o.axes[:1] == ("tokens",) for o in op.outputs if o.name == name)
