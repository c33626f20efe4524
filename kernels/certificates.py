"""Certificates: what a kernel has proved on this machine, bound to everything that could change it.

A certificate is looked up by the digest of its key, so editing a kernel, anything it calls, its
reference, its bound, its cases or the judge, changing a tool's version or the CPU, leaves it
unfound: stale certificates are never trusted. They are kept as JSON lines, only ever appended to.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from kernels.call import AnyKernel
from kernels.cuda import nvrtc
from kernels.cuda.call import stages
from kernels.cuda.current import current
from kernels.cuda.device import EMULATED
from kernels.cuda.kernel import CudaKernel
from kernels.domain import Axes, joined
from kernels.provenance import cache_folder, digest_of, fingerprint, machine, tools

LEVELS = (EMULATED, "quick", "full", "deep")

# The judge's own sources; not all they import, or an edit of one kernel would outdate every other.
JUDGE = (
    "kernels.judge", "kernels.guard", "kernels.trial", "kernels.domain", "kernels.call",
    "kernels.shapes", "kernels.kernel",
    "reference.op", "reference.values", "reference.bounds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """What a certificate binds: the kernel's row in the table, digests of sources, versions and
    settings of tools, and the machine."""

    kernel: str
    row: str
    source: str
    reference: str
    judge: str
    tools: str
    machine: str

    @classmethod
    def of(cls, kernel: AnyKernel, device: str = "") -> "Key":
        """Here and now; of a CUDA kernel on the device of this identity, or else the current."""
        if isinstance(kernel, CudaKernel):
            packed = [kernel.pack.fingerprint] if kernel.pack else []
            # the emulator, of which alone certificates are asked for by name, is its own library
            library = {"library": device or current().library} if kernel.multiplies else {}
            return cls(
                kernel=kernel.name,
                row=kernel.conditions(),
                source=_digest(*(stage.fingerprint for stage in stages(kernel)), *packed),
                reference=fingerprint(kernel.spec.reference.__module__),
                judge=digest_of(*JUDGE, "kernels.cuda.call"),
                tools=json.dumps(tools() | nvrtc.tools() | library),
                machine=device or current().identity,
            )
        shares = [kernel.share.fingerprint]
        if kernel.pack:
            shares.append(kernel.pack.share.fingerprint)
        if kernel.activations == "int8":
            shares.append(fingerprint("kernels.cpu.quantise_activations"))
        return cls(
            kernel=kernel.name,
            row=kernel.conditions(),
            source=_digest(*shares),
            reference=fingerprint(kernel.spec.reference.__module__),
            judge=digest_of(*JUDGE),
            tools=json.dumps(tools()),
            machine=machine(),
        )

    @property
    def digest(self) -> str:
        return _digest(json.dumps(asdict(self)))


def _digest(*words: str) -> str:
    return hashlib.sha256("".join(words).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Certificate:
    """The outcome of a trial; `failure` is empty for a kernel that passed.

    `worst` is the largest |error| / bound seen, `nmse` the largest on normally distributed inputs,
    `cases` how many were tried, `when` an ISO date, `stage` where a failure was found. The domain:
    `axes` has the smallest and the largest size tried of each axis, `shapes` those of nodes
    that were tried as they are (kernels/domain.py says what they answer for).
    """

    kernel: str
    key: str
    level: str
    cases: int
    worst: float
    nmse: float
    seconds: float
    when: str
    failure: str = ""
    stage: str = ""
    axes: Axes = field(default_factory=dict)
    shapes: tuple[dict[str, int], ...] = ()

    @property
    def passed(self) -> bool:
        return not self.failure

    def with_domain_of(self, other: "Certificate") -> "Certificate":
        """The same, which answers for what the other does, too."""
        shapes = [*self.shapes, *(s for s in other.shapes if s not in self.shapes)]
        return replace(self, axes=joined(self.axes, other.axes), shapes=tuple(shapes))


class Store:
    """The certificates kept in a JSON lines file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "certificates.jsonl"

    def load(self) -> dict[str, Certificate]:
        """The certificate that counts for each key: deep before full before quick, then the last,
        for all that was tried; but a failure, of any level, before what was passed earlier. Damaged
        lines are none."""
        found: dict[str, Certificate] = {}
        try:
            lines = self.path.read_text(errors="replace").splitlines()
        except OSError:  # none kept yet; where none can be kept, `add` says so
            return found
        for line in lines:
            try:
                said = json.loads(line)
                certificate = Certificate(**{**said, "shapes": tuple(said.get("shapes", ()))})
                level = LEVELS.index(certificate.level)
            except (ValueError, TypeError, AttributeError):
                continue
            known = found.get(certificate.key)
            if known and known.passed and certificate.passed:
                higher = level >= LEVELS.index(known.level)
                counts, other = (certificate, known) if higher else (known, certificate)
                found[certificate.key] = counts.with_domain_of(other)
            elif not known or not certificate.passed or level >= LEVELS.index(known.level):
                found[certificate.key] = certificate
        return found

    def get(self, kernel: AnyKernel) -> Certificate | None:
        """The certificate that holds for this kernel here and now."""
        return self.load().get(Key.of(kernel).digest)

    def add(self, certificates: Iterable[Certificate]) -> None:
        """Append, in one write, so that two programs cannot mix their lines."""
        lines = "".join(json.dumps(asdict(c)) + "\n" for c in certificates)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                file.write(lines.encode())
        except OSError as error:
            raise OSError(
                f"certificates cannot be kept in {self.path}: {error.strerror};"
                " set ASSAY_CACHE to a folder that can be written"
            ) from None
