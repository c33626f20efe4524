"""Choose the kernels that the engine may use: the best variant with a certificate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kernels.call import AnyKernel, emulated
from kernels.certificates import Certificate, Store, holding
from kernels.certify import Certified, certify
from kernels.compiled import compile_apart
from kernels.cuda.fusion.fused import Fused
from kernels.cuda.runtime.device import Device
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.table import CUDA_KERNELS
from kernels.domain import Axes, covers, extent
from kernels.kernel import NUMERICS, Kernel
from kernels.table import KERNELS, complaints, of_packages, variants
from kernels.trial import Request
from reference.op import Shape
from reference.quantise_activations import QUANTISING

K = TypeVar("K", Kernel, CudaKernel)


class UncertifiedError(RuntimeError):
    """No certified kernel for a need, or strict mode met one that failed."""


class VariantError(UncertifiedError):
    """No kernel at all is of the variant that was asked for."""


def first_of(kernels: Iterable[Kernel]) -> set[str]:
    """The names of those of these, best first, that steps of few tokens and of many would have."""
    few, any_number = dict[Any, str](), dict[Any, str]()
    for kernel in kernels:
        key = kernel.op, kernel.format, kernel.numerics
        any_number.setdefault(key, kernel.name)
        if kernel.fewest == 1:
            few.setdefault(key, kernel.name)
    return {*few.values(), *any_number.values()}


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A node's demand on the kernels: an op in a format, at sizes that `takes` looks at. `times`
    says of axes that vary how often a step's size counts: heads that stand as rows for tokens."""

    op: str
    format: str | None = None
    shape: tuple[tuple[str, int], ...] = ()
    times: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.op} {self.format}" if self.format else self.op

    def candidates(
        self, variant: str | None = None, numerics: str = "exact", fewest: int = 1
    ) -> list[Kernel]:
        """Kernels that could serve on this machine, best first, in steps of at least `fewest`
        tokens; `variant` forces the choice where the op has it, `numerics` "fast" admits kernels
        that round more."""
        own = (k for k in variants(self.op, self.format, variant) if k.fewest <= fewest)
        known = [k for k in own if not k.missing()]
        return self._admitted(known, variant, numerics)

    def candidates_on(
        self, device: Device, variant: str | None = None, numerics: str = "exact"
    ) -> list[CudaKernel]:
        """The same for a device."""
        own = [k for k in CUDA_KERNELS if (k.op, k.format) == (self.op, self.format)]
        # numerics first: whether there is a library is asked by loading it
        known = [k for k in own if k.numerics in ("exact", numerics) and not k.lacks(device)]
        return self._admitted(known, variant, numerics)

    def _admitted(self, kernels: list[K], variant: str | None, numerics: str) -> list[K]:
        shape: Shape = dict(self.shape)
        fits = [k for k in kernels if k.numerics in ("exact", numerics) and k.takes(shape)]
        return [k for k in fits if k.variant == variant] or fits


@dataclass(slots=True)
class Dispatcher:
    """Finds a certified kernel for every need, certifying what has no certificate yet, and trying
    what has one at the shapes that it does not answer for.

    `limits` has the largest sizes of what varies between steps, such as "tokens"; `numerics` "fast"
    admits kernels that round more than the default ones; `apart`: those of the CPU are compiled in
    a child process. In strict mode a failed certificate stops; else the next variant serves, and
    `notes` says so. `serving` names the CPU's kernels that were chosen.
    """

    store: Store
    strict: bool = False
    variant: str | None = None
    numerics: str = "exact"
    limits: Shape = field(default_factory=dict)
    apart: bool = False
    notes: list[str] = field(default_factory=list)
    serving: set[str] = field(default_factory=set)

    def choose(
        self, needs: Sequence[KernelSpec], progress: Certified | None = None, fewest: int = 1
    ) -> dict[KernelSpec, Kernel]:
        """A kernel for each need in steps of at least `fewest` tokens, or UncertifiedError."""
        self._check()
        options = {n: n.candidates(self.variant, self.numerics, fewest) for n in needs}
        if bare := [need for need in needs if not options[need]]:
            raise UncertifiedError(self._nothing_for(bare[0]))
        chosen = self._certified(options, progress)
        if bare := [need for need in needs if need not in chosen]:
            raise UncertifiedError(self._nothing_for(bare[0]))
        if self.apart:
            compile_apart(chosen.values())
        self.serving |= {kernel.name for kernel in chosen.values()}
        return chosen

    def choose_on(
        self, device: Device, needs: Sequence[KernelSpec], progress: Certified | None = None
    ) -> dict[KernelSpec, CudaKernel]:
        """A kernel of the device for each need that has one; where the kernel reads rounded
        activations, only if what rounds them is there too."""
        self._check()
        rounding = {kind: KernelSpec(op) for kind, op in QUANTISING.items()}

        def options(needs: Iterable[KernelSpec]) -> dict[KernelSpec, list[CudaKernel]]:
            return {n: n.candidates_on(device, self.variant, self.numerics) for n in needs}

        known = options(dict.fromkeys([*needs, *rounding.values()]))
        widths = options(
            KernelSpec(before.op, None, (("hidden", dict(n.shape)["hidden"]),), n.times)
            for n, kernels in known.items()
            for kind, before in rounding.items()
            if "hidden" in dict(n.shape) and any(k.activations == kind for k in kernels)
        )
        chosen = self._certified(known | widths, progress)
        return {
            need: kernel
            for need, kernel in chosen.items()
            if need not in widths
            and (kernel.activations not in rounding or rounding[kernel.activations] in chosen)
        }

    def passing(self, kernels: Sequence[Fused], progress: Certified | None = None) -> list[Fused]:
        """Return those that have a certificate or earn one now; nothing takes the others' place."""
        needs: dict[KernelSpec, list[CudaKernel]] = {KernelSpec(k.name): [k] for k in kernels}
        passed = self._certified(needs, progress)
        return [k for k in kernels if KernelSpec(k.name) in passed]

    def _check(self) -> None:
        ours = {k.variant for k in KERNELS} | {k.variant for k in CUDA_KERNELS}
        if self.variant and self.variant not in ours and not of_packages(self.variant):
            known_variants = sorted(ours | {k.variant for k in of_packages()})
            why = "".join(f"; {complaint}" for complaint in complaints())
            raise VariantError(
                f"no kernel is a variant {self.variant!r}: {', '.join(known_variants)}{why}"
            )
        if self.numerics not in NUMERICS:
            raise UncertifiedError(f"no numerics are {self.numerics!r}: {', '.join(NUMERICS)}")

    def _certified(
        self, candidates: Mapping[KernelSpec, Sequence[K]], progress: Certified | None
    ) -> dict[KernelSpec, K]:
        """The first of each need's candidates that passes; needs of which none does are left
        out."""
        options = {need: list(kernels) for need, kernels in candidates.items()}
        asked: list[Request] = []
        while True:
            known, first = self.store.load(), dict[KernelSpec, K]()
            for need, kernels in options.items():
                while kernels:
                    certificate = holding(kernels[0], known)
                    if certificate is None or certificate.passed:
                        first[need] = kernels[0]
                        break
                    self._refuse(kernels.pop(0), certificate)
            requests = self._requests(first, known)
            if again := [request for request in requests if request in asked]:
                raise UncertifiedError(f"{again[0].kernel} changed while it was tried: load again")
            if not requests:
                return first
            certify(requests, self.store, progress)
            asked += requests

    def _requests(
        self, chosen: Mapping[KernelSpec, AnyKernel], known: Mapping[str, Certificate]
    ) -> list[Request]:
        """What has to be tried before these kernels may serve these needs."""
        kernels = {kernel.name: kernel for kernel in chosen.values()}
        shapes: dict[str, list[Shape]] = {name: [] for name in kernels}
        untried = {n for n, k in kernels.items() if holding(k, known) is None}
        for need, kernel in chosen.items():
            if emulated(kernel):
                continue  # who proves nothing of a GPU need not prove it at size
            axes, tried = self._domain(kernel, known)
            shape = self._shape(need, kernel)
            if not covers(kernel.spec, axes, tried, shape):
                shapes[kernel.name].append(shape)
        return [
            Request(name, shapes=tuple(own), shapes_only=name not in untried)
            for name, own in shapes.items()
            if own or name in untried
        ]

    def _domain(
        self, kernel: AnyKernel, known: Mapping[str, Certificate]
    ) -> tuple[Axes, Sequence[Shape]]:
        """What a kernel's certificate answers for, or will when it has one."""
        certificate = holding(kernel, known)
        if certificate:
            return certificate.axes, certificate.shapes
        cases = kernel.spec.quick_cases(kernel.format)
        return extent(case for case in cases if kernel.takes(case.shape)), ()

    def _shape(self, need: KernelSpec, kernel: AnyKernel) -> dict[str, int]:
        """A need's sizes, with the largest of those that vary, as far as the kernel takes them."""
        op, times = kernel.spec, dict(need.times)
        found = {axis: size for axis, size in need.shape if axis in op.axes}
        for axis in self.limits.keys() & set(op.varying) & set(op.axes) - found.keys():
            size = self.limits[axis] * times.get(axis, 1)
            taken = kernel.takes(op.case({**found, axis: size}, format=kernel.format).shape)
            found[axis] = size if taken else max(op.axes[axis])
        return found

    def _refuse(self, kernel: AnyKernel, certificate: Certificate) -> None:
        note = f"{kernel.name} failed its trial and is not used: {certificate.failure}"
        if self.strict:
            raise UncertifiedError(f"{note}; strict mode takes no other variant")
        if note not in self.notes:
            self.notes.append(note)

    def _nothing_for(self, need: KernelSpec) -> str:
        reasons = [note for note in self.notes if note.startswith(f"{need.op}/")]
        return f"no certified kernel for {need}" + (f": {reasons[-1]}" if reasons else " here")
