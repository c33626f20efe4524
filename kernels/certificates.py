"""Certificates: what a kernel has proved on this machine, bound to everything that could change it.

A certificate is looked up by the digest of its key, so editing a kernel, anything it calls, its
reference, bound, cases or the judge, changing a tool's version or the CPU, makes the lookup fail: a
stale certificate is never trusted. They are stored as JSON lines, append-only.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kernels.cache import append, append_to, cache_folder, read_all, read_own, ready
from kernels.call import AnyKernel
from kernels.cpu import quantise_activations
from kernels.cpu.runtime.share import Share
from kernels.cuda.runtime import nvrtc
from kernels.cuda.runtime.call import stages
from kernels.cuda.runtime.current import current
from kernels.cuda.runtime.device import EMULATED
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.domain import Axes, joined
from kernels.kernel import Kernel
from kernels.provenance import digest_of, digest_of_package, fingerprint, machine, tools
from kernels.table import package_of
from reference.packages import PACKAGES
from reference.quantise_activations import QUANTISING
from reference.table import package_ops as ops_of_packages

LEVELS = (EMULATED, "quick", "full", "deep")

# The judge's own sources; not all its imports, or an edit of one kernel would outdate every other.
JUDGE = (
    "kernels.certificates", "kernels.judge", "kernels.runs", "kernels.guard", "kernels.trial",
    "kernels.domain", "kernels.call", "kernels.shapes", "kernels.kernel",
    "kernels.cpu.runtime.float_control", "kernels.cpu.runtime.team",
    "kernels.cpu.runtime.thread_errors",
    "reference.op", "reference.values", "reference.bounds",
)  # fmt: skip
# And what runs and compiles kernels on a GPU.
ON_DEVICE = "kernels.cuda.runtime.call", "kernels.cuda.runtime.gpu", "kernels.cuda.runtime.nvrtc"


@dataclass(frozen=True, slots=True)
class Key:
    """What a certificate is bound to: the kernel's row in the table, digests of sources, versions
    and settings of tools, and the machine."""

    kernel: str
    row: str
    source: str
    reference: str
    judge: str
    tools: str
    machine: str

    @classmethod
    def of(cls, kernel: AnyKernel, device: str = "") -> "Key":
        """The key here and now; of a CUDA kernel, on the device of this identity or else the
        current one."""
        if isinstance(kernel, CudaKernel):
            packed = [kernel.pack.fingerprint] if kernel.pack else []
            # the emulator, the only one certified by name, is its own library
            library = {"library": device or current().library} if kernel.multiplies else {}
            return cls(
                kernel=kernel.name,
                row=kernel.conditions(),
                source=_digest(*(stage.fingerprint for stage in stages(kernel)), *packed),
                reference=_truth(kernel),
                judge=digest_of(*JUDGE, *ON_DEVICE),
                tools=json.dumps(tools() | nvrtc.tools() | library),
                machine=device or current().identity,
            )
        return cls(
            kernel=kernel.name,
            row=kernel.conditions(),
            source=_digest(*(share.fingerprint for share in shares_of(kernel)), *_package(kernel)),
            reference=_truth(kernel),
            judge=digest_of(*JUDGE),
            tools=json.dumps(tools()),
            machine=machine(),
        )

    @property
    def digest(self) -> str:
        return _digest(json.dumps(asdict(self)))


def _truth(kernel: AnyKernel) -> str:
    """The digest of a kernel's reference with its bound and cases. A package's op may define them
    anywhere in the package, which is bound as a whole."""
    found = fingerprint(kernel.spec.reference.__module__)
    package = ops_of_packages()[1].get(kernel.op) if PACKAGES else None
    return _digest(found, digest_of_package(package.module)) if package else found


def _package(kernel: Kernel) -> list[str]:
    """For a package's kernel, whose share may come from elsewhere, the digest of all its files."""
    package = package_of(kernel) if PACKAGES else None
    return [digest_of_package(package.module)] if package else []


def shares_of(kernel: Kernel) -> list[Share]:
    """Everything compiled for a CPU kernel: its shares, what they call, preceding stages and its
    packer."""
    shares = [*kernel.shares, *(share.calls for share in kernel.shares if share.calls)]
    if kernel.pack:
        shares.append(kernel.pack.share)
    if kernel.activations in QUANTISING:
        shares.append(quantise_activations.SHARES[kernel.activations])
    return shares


def code_of(kernel: AnyKernel) -> str:
    """The digest of the machine code that this process runs, compiled now if necessary; "" for a
    CUDA kernel, whose key binds it."""
    if isinstance(kernel, CudaKernel):
        return ""
    return _digest(*(share.code.digest for share in shares_of(kernel)))


def construction_of(kernel: AnyKernel) -> str:
    """The complaint about a CPU kernel's machine code that no trial could find by running it; "" if
    none."""
    if isinstance(kernel, CudaKernel):
        return ""
    found = ((share.name, share.code.construction) for share in shares_of(kernel))
    return next((f"{name} {complaint}" for name, complaint in found if complaint), "")


def _digest(*words: str) -> str:
    return hashlib.sha256("".join(words).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Certificate:
    """The outcome of a trial; `failure` is empty for a kernel that passed.

    `worst` is the largest |error| / bound seen, `nmse` the largest on normally distributed inputs,
    `cases` the number of cases tried, `when` an ISO date, `stage` where a failure was found, `code`
    the digest of the machine code. The domain: `axes` has the smallest and the largest size tried
    of each axis, `shapes` the nodes' shapes that were tried as they are (kernels/domain.py defines
    what they cover). A `partial` one is of such shapes alone and extends another's domain.
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
    code: str = ""
    partial: bool = False
    axes: Axes = field(default_factory=dict)
    shapes: tuple[dict[str, int], ...] = ()

    @classmethod
    def parse(cls, said: dict[str, Any]) -> "Certificate":
        """A certificate from its JSON fields."""
        return cls(**{**said, "shapes": tuple(said.get("shapes", ()))})

    @property
    def passed(self) -> bool:
        return not self.failure

    def with_domain_of(self, other: "Certificate") -> "Certificate":
        """The same certificate with the other's domain added."""
        shapes = [*self.shapes, *(s for s in other.shapes if s not in self.shapes)]
        return replace(self, axes=joined(self.axes, other.axes), shapes=tuple(shapes))


class Store:
    """The certificates in a JSON lines file."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        return self._path or cache_folder() / "certificates.jsonl"

    def load(self) -> dict[str, Certificate]:
        """The certificate that counts for each key: deep before full before quick, then the latest,
        over everything tried; but a failure, at any level, overrides earlier passes. Certificates
        of other machine code than the latest do not count, and damaged lines are ignored."""
        found: dict[str, Certificate] = {}
        kept = [read_own(self._path)] if self._path else [*read_all("certificates.jsonl")][::-1]
        lines = b"".join(filter(None, kept)).decode(errors="replace").splitlines()
        for line in lines:
            try:
                certificate = Certificate.parse(json.loads(line))
                level = LEVELS.index(certificate.level)
            except (ValueError, TypeError, AttributeError):
                continue
            known = found.get(certificate.key)
            if known and known.code and known.code != certificate.code:
                known = None  # other machine code than was tried last
            if known and known.passed and certificate.passed:
                higher = level >= LEVELS.index(known.level)
                counts, other = (certificate, known) if higher else (known, certificate)
                found[certificate.key] = counts.with_domain_of(other)
            elif certificate.passed and certificate.partial:
                continue
            elif not known or not certificate.passed or level >= LEVELS.index(known.level):
                found[certificate.key] = certificate
        return found

    def get(self, kernel: AnyKernel) -> Certificate | None:
        """The certificate that applies to this kernel here and now."""
        return holding(kernel, self.load())

    def ready(self) -> None:
        """Report now, rather than after the trials, if nothing can be stored."""
        if self._path is None:
            ready()

    def add(self, certificates: Iterable[Certificate]) -> None:
        """Append in one write, so that two programs cannot interleave their lines."""
        lines = "".join(json.dumps(asdict(c)) + "\n" for c in certificates).encode()
        if self._path is None:
            append("certificates.jsonl", lines)
            return
        try:
            append_to(self._path, lines)
        except OSError as error:
            raise OSError(
                f"certificates cannot be kept in {self._path}: {error.strerror};"
                " set ASSAY_CACHE to a folder that can be written"
            ) from None


def holding(kernel: AnyKernel, known: Mapping[str, Certificate]) -> Certificate | None:
    """Of the certificates by key, the one that applies to what this process would run: none if
    other machine code was tried. A failure before there was any code applies."""
    found = known.get(Key.of(kernel).digest)
    if found and not found.passed and not found.code:
        return found
    return found if found and found.code == code_of(kernel) else None


def reached(kernel: AnyKernel, known: Mapping[str, Certificate], level: str) -> bool:
    """Whether a trial at a level would add nothing: one as high was passed, or one failed."""
    found = holding(kernel, known)
    if found is None:
        return False
    return not found.passed or LEVELS.index(found.level) >= LEVELS.index(level)
