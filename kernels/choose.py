"""Choose the kernels that the engine may use: the best variant with a certificate."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernels.certificates import Certificate, Key, Store
from kernels.certify import Certified, certify
from kernels.kernel import NUMERICS, Kernel
from kernels.table import KERNELS, variants
from reference.op import Shape


class UncertifiedError(RuntimeError):
    """No certified kernel for a need, or strict mode met one that failed."""


@dataclass(frozen=True, slots=True)
class Need:
    """A node's demand on the kernels: an op in a format, at sizes that `takes` looks at."""

    op: str
    format: str | None = None
    shape: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.op} {self.format}" if self.format else self.op

    def candidates(self, variant: str | None = None, numerics: str = "exact") -> list[Kernel]:
        """Kernels that could serve on this machine, best first; `variant` forces the choice where
        the op has it, `numerics` "fast" admits kernels that round more."""
        shape: Shape = dict(self.shape)
        fits = [
            kernel
            for kernel in variants(self.op, self.format)
            if kernel.numerics in ("exact", numerics)
            and not kernel.missing()
            and kernel.takes(shape)
        ]
        forced = [k for k in fits if k.variant == variant]
        return forced or fits


@dataclass(slots=True)
class Chooser:
    """Finds a certified kernel for every need, certifying what has no certificate yet.

    `numerics` "fast" admits kernels that round more than the default ones. In strict mode a failed
    certificate stops; else the next variant serves, and `notes` says so.
    """

    store: Store
    strict: bool = False
    variant: str | None = None
    numerics: str = "exact"
    notes: list[str] = field(default_factory=list)

    def choose(
        self, needs: Sequence[Need], progress: Certified | None = None
    ) -> dict[Need, Kernel]:
        """A kernel for each need, or UncertifiedError."""
        known_variants = sorted({kernel.variant for kernel in KERNELS})
        if self.variant and self.variant not in known_variants:
            raise UncertifiedError(
                f"no kernel is a variant {self.variant!r}: {', '.join(known_variants)}"
            )
        if self.numerics not in NUMERICS:
            raise UncertifiedError(f"no numerics are {self.numerics!r}: {', '.join(NUMERICS)}")
        chosen: dict[Need, Kernel] = {}
        options = {need: need.candidates(self.variant, self.numerics) for need in needs}
        while missing := [need for need in options if need not in chosen]:
            for need in missing:
                if not options[need]:
                    raise UncertifiedError(self._nothing_for(need))
            known = self.store.load()
            untried = _distinct(
                options[n][0] for n in missing if Key.of(options[n][0]).digest not in known
            )
            if untried:
                certify(untried, self.store, progress)
                known = self.store.load()
            for need in missing:
                kernel = options[need][0]
                certificate = known.get(Key.of(kernel).digest)
                if certificate is None:
                    raise UncertifiedError(f"{kernel.name} changed while it was tried: load again")
                if certificate.passed:
                    chosen[need] = kernel
                else:
                    self._refuse(kernel, certificate)
                    options[need].pop(0)
        return chosen

    def _refuse(self, kernel: Kernel, certificate: Certificate) -> None:
        note = f"{kernel.name} failed its trial and is not used: {certificate.failure}"
        if self.strict:
            raise UncertifiedError(f"{note}; strict mode takes no other variant")
        if note not in self.notes:
            self.notes.append(note)

    def _nothing_for(self, need: Need) -> str:
        reasons = [note for note in self.notes if note.startswith(f"{need.op}/")]
        return f"no certified kernel for {need}" + (f": {reasons[-1]}" if reasons else " here")


def _distinct(kernels: Iterable[Kernel]) -> list[Kernel]:
    return list({kernel.name: kernel for kernel in kernels}.values())
