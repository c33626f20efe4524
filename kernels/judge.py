"""The judge: tries a kernel on one case of its op and says whether it may pass.

A case is run as the engine runs kernels, and harder: whole by one thread; once more in the same
memory with other data, by a team of real threads, several times; each thread alone, so that writes
are seen to be disjoint and complete; and at another place in memory. Outputs begin as NaN, inputs
and packed weights may not be written to, pages that may not be touched lie around every array, and
no run may leave rounding modes changed. What fills memory and where arrays lie follows from
a `secret`, which no kernel can know. Kernels on rounded activations are judged twice: tightly
against the product of those same activations, and against the float product with the rounding
step added.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernels.call import AnyKernel, bind, stages
from kernels.cpu.float_control import RAISED, SIGNATURE, read_control, restore_control
from kernels.cpu.raised import listen, stop_listening
from kernels.cpu.share import pack_words
from kernels.cpu.team import Program, Team
from kernels.cuda.kernel import CudaKernel
from kernels.errors import KernelError
from kernels.guard import AT_END, Guarded
from kernels.kernel import Kernel
from reference.op import DTYPES, Arguments, Array, Case, Op, size_of
from reference.values import NOT_FINITE

FLOAT32_ENDS = 2.0**128 - 2.0**103  # from here on the nearest float32 is an infinity
PLACES = (0, AT_END, 4, 64, 16)  # of arrays in their pages
MOST_THREADS, FEW_THREADS = 16, 5  # at once, in some cases and in the others
REPEATS = 3  # runs by real threads, all of which give the same bits
SMALL = 2**21  # bytes and operations of a case that is run in every way there is
LINE = 64  # bytes: packed weights begin at a multiple of it


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one case showed: the worst |error| / bound (at most 1 to pass), and the NMSE."""

    case: Case
    worst: float = 0.0
    nmse: float = 0.0
    failure: str = ""

    @property
    def passed(self) -> bool:
        return not self.failure


def judge(kernel: AnyKernel, case: Case, secret: int = 0) -> Verdict:
    """Try one case; the first thing found wrong is the failure."""
    rng = np.random.default_rng([secret, case.seed, *case.shape.values()])
    try:
        if isinstance(kernel, CudaKernel):
            return _on_device(kernel, case, rng)
        return _on_cpu(kernel, case, rng, (secret + case.seed) % len(PLACES))
    except KernelError as fault:
        return Verdict(case, np.inf, np.inf, str(fault))


def _on_cpu(kernel: Kernel, case: Case, rng: np.random.Generator, turn: int) -> Verdict:
    cost = kernel.spec.cost(case.shape, case.format)
    small = cost.bytes + cost.operations <= SMALL
    inputs = kernel.spec.make(case)
    setup = _Setup(kernel, case, inputs, PLACES[turn], rng)
    first = setup.run(1)
    verdict = compare(kernel, case, inputs, first)
    if not verdict.passed:
        return verdict
    if small:
        other = replace(case, seed=case.seed + int(rng.integers(1, 2**31)))
        setup.fill(kernel.spec.make(other), other)
    most = MOST_THREADS if small and turn == 0 else FEW_THREADS
    again = setup.run_team(int(rng.integers(2, most + 1)))
    if small:
        verdict = _worse(verdict, compare(kernel, other, setup.inputs, again), "a second call: ")
        setup.fill(inputs, case)
        setup.run_apart(int(rng.integers(2, MOST_THREADS + 1)), first)
    elif _differing(first, again):
        raise KernelError(f"{_differing(first, again)} differs between one thread and several")
    if small:
        moved = _Setup(kernel, case, inputs, PLACES[(turn + 1) % len(PLACES)], rng)
        if name := _differing(first, moved.run(1)):
            raise KernelError(f"{name} differs where arrays lie elsewhere in memory")
        if name := _differing(first, _side_by_side(kernel, case, inputs, rng)):
            raise KernelError(f"{name} differs where arrays lie side by side in memory")
    return verdict


def _side_by_side(
    kernel: Kernel, case: Case, inputs: Arguments, rng: np.random.Generator
) -> dict[str, Array]:
    """The outputs where all arrays lie in one piece of memory, in which an earlier node left
    ordinary numbers: no guard tells a kernel that it is being judged."""
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
    bind(kernel, given, results)(1, (0,))
    return results


def _worse(verdict: Verdict, other: Verdict, when: str) -> Verdict:
    """Of two verdicts on one case: the failure, if there is one, and the larger figures."""
    failure = other.failure and when + other.failure
    worst, nmse = max(verdict.worst, other.worst), max(verdict.nmse, other.nmse)
    return Verdict(verdict.case, worst, nmse, failure)


def _differing(one: Mapping[str, Array], other: Mapping[str, Array]) -> str:
    """The first array that is not bit for bit the same."""
    return next((n for n in one if one[n].tobytes() != other[n].tobytes()), "")


class _Setup:
    """A CPU kernel over arrays of which each is guarded."""

    def __init__(
        self, kernel: Kernel, case: Case, inputs: Arguments, place: int, rng: np.random.Generator
    ) -> None:
        self.kernel, self.case, self.place, self.rng = kernel, case, place, rng
        op, self._spare = kernel.spec, list[Guarded]()
        self._slots = {
            a.name: self._guarded(inputs[a.name].shape, inputs[a.name].dtype)
            for a in op.inputs
            if a.axes and not (kernel.pack and a.name == "weight")  # which it sees packed alone
        }
        self._results = {
            o.name: self._guarded(
                o.dims(case.shape, case.format), np.dtype(DTYPES.get(o.dtype, np.uint8))
            )
            for o in op.outputs
        }
        self.outputs = {name: result.array for name, result in self._results.items()}
        self._packed: Guarded | None = None
        if kernel.pack:
            shape = kernel.pack.shape(inputs["weight"])
            self._packed = self._guarded(shape, np.uint8, LINE)
        self.inputs: Arguments = {}
        self.fill(inputs, case)
        arrays = {name: slot.array for name, slot in self._slots.items()}
        packed = self._packed.array if self._packed else None
        called = stages(kernel, {**inputs, **arrays}, self.outputs, packed, self._allocate)
        self._blocks = [Guarded(b.shape, b.dtype, AT_END, rng) for _, b, _ in called]
        for slot, (_, block, _) in zip(self._blocks, called, strict=True):
            slot.put(block)
        self._calls = [(c[0], slot.array) for c, slot in zip(called, self._blocks, strict=True)]

    def _guarded(self, dims: tuple[int, ...], dtype: Any, boundary: int = 0) -> Guarded:
        return Guarded(dims, dtype, self.place, self.rng, boundary)

    def _allocate(self, dims: tuple[int, ...], dtype: Any) -> Array:
        self._spare.append(self._guarded(dims, dtype))
        self._spare[-1].poison(self.rng)
        return self._spare[-1].array

    def fill(self, inputs: Arguments, case: Case) -> None:
        """Put a case's arguments where the ones before were; scalars stay as they are."""
        scalars = {n: v for n, v in self.inputs.items() if not isinstance(v, np.ndarray)}
        self.inputs = {**inputs, **scalars}
        for name, slot in self._slots.items():
            slot.put(inputs[name], self._sampled(inputs[name], case) if name == "weight" else None)
        if self._packed:
            self._pack(inputs["weight"], case)

    def _pack(self, weight: Array, case: Case) -> None:
        """The packed weight anew; of a large one only groups of rows that are not zero."""
        assert self.kernel.pack is not None
        assert self._packed is not None
        packing, packed = self.kernel.pack, self._packed.writable().reshape(-1)
        rows = len(weight)
        chosen = self._sampled(weight, case)
        if len(chosen) == rows:
            packed.fill(0xFF)
            block = packing.block(weight, packed)
            for thread in reversed(range(3)):
                packing.share(block, thread, 3)
        else:
            for group in np.unique(chosen // packing.lanes):
                first = int(group) * packing.lanes
                some = np.ascontiguousarray(weight[first : first + packing.lanes])
                begin = packing.place(weight, first)
                part = packed[begin : begin + packing.place(weight, len(some))]
                packing.share(packing.block(some, part), 0, 1)
        if not self._packed.intact:
            raise KernelError("packing wrote outside the packed weight")
        self._packed.lock()

    def _sampled(self, weight: Array, case: Case) -> Array:
        argument = next(a for a in self.kernel.spec.inputs if a.name == "weight")
        if argument.dtype != "format":
            return np.arange(len(weight))
        return case.sampled(len(weight), size_of(argument.axes[1], case.shape))

    def poison(self) -> None:
        """Outputs become what nobody can know, or what stands there before an update in place."""
        updated = dict(self.kernel.in_place)
        for name, result in self._results.items():
            if name in updated:
                result.array[...] = self.inputs[updated[name]]
            else:
                result.poison(self.rng)

    def run(self, n_threads: int) -> dict[str, Array]:
        """The outputs by so many threads, one after the other."""
        self.poison()
        with self._watched():
            for share, block in self._calls:
                for thread in self.rng.permutation(n_threads):
                    share(block, int(thread), n_threads)
        return {name: output.copy() for name, output in self.outputs.items()}

    def run_team(self, n_threads: int) -> dict[str, Array]:
        """The outputs by so many threads at once, several times."""
        control = np.zeros((2, n_threads), np.uint32)
        before, after = (pack_words(SIGNATURE, {"control": row}) for row in control)
        entries = [(read_control, before), *self._calls, (read_control, after)]
        program, found = Program(entries), dict[str, Array]()
        with Team(n_threads) as team:
            for _ in range(REPEATS):
                self.poison()
                try:
                    team.run(program)
                except Exception as error:
                    raise KernelError(f"raised {type(error).__name__}: {error}") from None
                if _changed(control):
                    team.run(Program([(restore_control, before)]))
                    raise KernelError(MODES)
                self._check()
                once = {name: output.copy() for name, output in self.outputs.items()}
                if found and (name := _differing(found, once)):
                    raise KernelError(f"{name} differs between runs by {n_threads} threads at once")
                found = once
        return found

    def run_apart(self, n_threads: int, whole: Mapping[str, Array]) -> None:
        """Each thread of each stage alone: no two write to one element, and together they make
        what one thread made. If the kernel says that it splits tokens, those of others are left
        alone and do not matter: no barrier stands between kernels that keep to this."""
        self.poison()
        first = len(self._calls) - len(self.kernel.shares)
        with self._watched():
            for stage, (share, block) in enumerate(self._calls):
                if stage < first:  # what rounds activations is a kernel of its own
                    for thread in range(n_threads):
                        share(block, thread, n_threads)
                    continue
                self._stage_apart(share, block, n_threads)
        if name := _differing(whole, self.outputs):
            raise KernelError(f"{name} is not what its {n_threads} threads write, each for itself")

    def _stage_apart(self, share: Any, block: Array, n_threads: int) -> None:
        before = {name: output.copy() for name, output in self.outputs.items()}
        written = {n: np.zeros(output.shape, bool) for n, output in self.outputs.items()}
        together = {name: output.copy() for name, output in self.outputs.items()}
        tokens = self.case.shape.get("tokens", 0)
        for thread in range(n_threads):
            own = slice(tokens * thread // n_threads, tokens * (thread + 1) // n_threads)
            for name, output in self.outputs.items():
                output[...] = before[name]
            with self._strange_tokens(own):
                share(block, thread, n_threads)
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
        """Tokens of other threads hold NaN, if the kernel says that it splits tokens."""
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
        """Runs on this thread: what they raise, leave changed or write beside arrays is a fault."""
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
        """Nothing was written beside the arrays."""
        for name, slot in (self._results | self._slots).items():
            if not slot.intact:
                raise KernelError(f"{name} was written outside its bounds")
        if not all(slot.intact for slot in self._spare):
            raise KernelError("scratch was written outside its bounds")


MODES = "it left the floating-point control register changed"


def _changed(control: Array) -> bool:
    return bool(np.any((control[0] ^ control[1]) & ~np.uint32(RAISED)))


def _bytes_differ(one: Array, other: Array) -> Array:
    """Which elements are not bit for bit the same."""
    a, b = (x.view(np.uint8).reshape(*x.shape, x.itemsize) for x in (one, other))
    return np.asarray((a != b).any(axis=-1))


def _tokens_first(op: Op, name: str) -> bool:
    return next(o.axes[:1] == ("tokens",) for o in op.outputs if o.name == name)


def _on_device(kernel: CudaKernel, case: Case, rng: np.random.Generator) -> Verdict:
    """The same of a kernel for GPUs as far as the host can: it runs twice, in memory that begins
    as NaN between canaries, and leaves its inputs alone."""
    inputs = kernel.spec.make(case)
    arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
    for value in arrays.values():
        value.flags.writeable = False
    before = {name: value.copy() for name, value in arrays.items()}
    found = []
    for order in ((0,), (2, 1, 0)):
        results = {
            o.name: Guarded(
                o.dims(case.shape, case.format), DTYPES.get(o.dtype, np.uint8), AT_END, rng
            )
            for o in kernel.spec.outputs
        }
        for result in results.values():
            result.poison(rng)
        outputs = {name: result.array for name, result in results.items()}
        bind(kernel, inputs, outputs)(len(order), order)
        found.append(outputs)
    if name := _differing(before, arrays):
        raise KernelError(f"input {name} was written to")
    if name := _differing(*found):
        raise KernelError(f"{name} differs between two runs")
    return compare(kernel, case, inputs, found[0])


def compare(
    kernel: AnyKernel, case: Case, inputs: Arguments, outputs: Mapping[str, Array]
) -> Verdict:
    """What a kernel made of these inputs, against the reference and the op's bound."""
    op = kernel.spec
    inputs, outputs, rest = _sampled(op, case, inputs, outputs)
    if rest:
        return Verdict(case, np.inf, np.inf, rest)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = op.expected(inputs)
        if kernel.activations == "float32":
            bounds, also = op.bound(inputs, expected), op.also(inputs, expected)
            return _judged(case, outputs, expected, bounds, also)
        if case.values in NOT_FINITE:
            return _contained(case, inputs["x"], outputs["out"], expected["out"])
        exact, tight, step = op.rounded[kernel.activations](inputs)
        verdict = _judged(case, outputs, op.expected(exact), {"out": tight})
        if not verdict.passed:
            return verdict
        quality = _judged(case, outputs, expected, {"out": tight + step})
        return Verdict(case, verdict.worst, quality.nmse, quality.failure)


def _sampled(
    op: Op, case: Case, inputs: Arguments, outputs: Mapping[str, Array]
) -> tuple[Arguments, Mapping[str, Array], str]:
    """Inputs and outputs for those rows of a large weight that are not zero, and what is wrong
    with the others' outputs, which are zero."""
    weight = next((a for a in op.inputs if a.axes[:1] == (op.separate,)), None)
    if not op.separate or weight is None:
        return inputs, outputs, ""
    rows, elements = (size_of(axis, case.shape) for axis in weight.axes)
    chosen = case.sampled(rows, elements)
    if len(chosen) == rows:
        return inputs, outputs, ""
    inputs = {**inputs, weight.name: inputs[weight.name][chosen]}
    found = {}
    for output in op.outputs:
        axis = output.axes.index(op.separate)
        found[output.name] = np.take(outputs[output.name], chosen, axis)
        others = np.delete(outputs[output.name], chosen, axis)
        if others.any():
            return inputs, found, f"{output.name}: rows of zeros gave other than zeros"
    return inputs, found, ""


def _contained(case: Case, x: Array, got: Array, want: Array) -> Verdict:
    """Of a kernel that rounds x: tokens that hold infinities or NaN give what is not finite where
    the reference does; how others fare is what other cases ask."""
    strange = ~np.isfinite(x).all(axis=1)
    failure = ""
    if np.isfinite(got[strange][~np.isfinite(want[strange])]).any():
        failure = "out is finite where the reference is infinite or NaN"
    elif not np.isfinite(got[~strange][np.isfinite(want[~strange])]).all():
        failure = "out is not finite in a token whose inputs are, where the reference is"
    return Verdict(case, np.inf if failure else 0.0, np.inf if failure else 0.0, failure)


def _judged(
    case: Case,
    outputs: Mapping[str, Array],
    expected: dict[str, Array],
    bounds: dict[str, Array],
    also: Mapping[str, Array] | None = None,
) -> Verdict:
    worst = nmse = 0.0
    for name, want in expected.items():
        got, bound = outputs[name].astype(np.float64), np.asarray(bounds[name], np.float64)
        want = want.astype(np.float64)
        if outputs[name].dtype == np.float32:
            # what lies within the bound of float32's largest number may be an infinity
            beyond = np.isinf(got) & (np.abs(want) + bound >= FLOAT32_ENDS)
            want = np.where(beyond & (np.sign(got) == np.sign(want)), got, want)
            want = np.where(np.abs(want) - bound >= FLOAT32_ENDS, np.copysign(np.inf, want), want)
        error = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0, np.abs(got - want))
        for other in (also or {}).get(name, ()):
            error = np.where(got == other, 0, error)
        bad = ~((error <= bound) | (error == 0))  # also where got, want or its bound alone is NaN
        ratio = np.where(error == 0, 0, error / np.where(bound > 0, bound, np.nan))
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            limit = f"{bound[at]:.3g}" if bound[at] else "0 (exact)"
            failure = (
                f"{name}{list(at)} is {got[at]:.9g}, expected {want[at]:.9g}: off by"
                f" {error[at]:.3g}, bound {limit}; {bad.sum()} of {bad.size} wrong"
            )
            ratio = np.where(np.isnan(ratio), np.inf, ratio)
            return Verdict(case, float(ratio.max()), np.inf, failure)
        if got.size:
            worst = max(worst, float(ratio.max()))
            finite = np.isfinite(want)
            power = float(np.sum(want[finite] ** 2))
            nmse = max(nmse, float(np.sum(error[finite] ** 2)) / power if power else 0.0)
    return Verdict(case, worst, nmse)


def replay(kernel: str, case: Case, secret: int = 0) -> str:
    """The command that tries a case again on a kernel, given by name."""
    op, target, variant, *_ = kernel.split("/")
    program = "python -m conformance.cuda.op" if target == "cuda" else "assay op"
    said = f" --secret {secret}" if secret else ""
    return f"{program} {op} --variant {variant} {case.describe()}{said}"
