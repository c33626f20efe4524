"""What a planted bug is, and the wrong kernel that it makes."""

import hashlib
import importlib
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from conformance.bugs.shares import C_FOLDER, CShare, PythonShare, Work, storing
from kernels.call import AnyKernel
from kernels.cpu.share import Share
from kernels.cuda.fusions import EVERY_CUDA
from kernels.cuda.launch import FOLDER as CUDA_FOLDER
from kernels.cuda.launch import Launch
from kernels.kernel import Kernel
from kernels.table import find, variants
from reference.op import Shape

NUMBA_FOLDER = Path(sys.modules[Share.__module__].__file__ or "").parent

Language = Literal["c", "numba", "cuda", "python"]
# construction: a look at the compiled code; cases: the op's own; shape: those of a model's node
Seen = Literal["construction", "cases", "shape"]


@dataclass(frozen=True, slots=True)
class Edit:
    """In `file`, `old`, which stands there once, becomes `new`."""

    file: str
    old: str
    new: str

    def of(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} stands {text.count(self.old)} times")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Bug:
    """A wrong kernel of an op in a format, who must see it, and at the latest at which shape.

    What it does is an edit of a right kernel (of one in conformance/bugs/c, or of ours), or a
    share in Python.
    """

    op: str
    language: Language
    name: str
    does: Edit | Work
    format: str | None = None
    seen: Seen = "cases"
    shapes: tuple[Shape, ...] = ()
    variant: str = "generic"
    activations: str = "float32"

    def __str__(self) -> str:
        variant = self.variant if self.variant != "generic" else ""
        return "/".join(filter(None, (self.op, self.language, variant, self.format, self.name)))

    def kernel(self, folder: Path) -> AnyKernel:
        """The wrong kernel; its sources, and what they compile to, are put into the folder."""
        if not isinstance(self.does, Edit):
            return self._row(PythonShare(str(self), self.op, self.format, self.does))
        edit = self.does
        if self.language == "c":
            source = edit.of((C_FOLDER / edit.file).read_text())
            return self._row(CShare(str(self), self.op, self.format, source, folder))
        edited = self._edited_cuda if self.language == "cuda" else self._edited_numba
        return edited(edit, folder)

    def _row(self, share: Any) -> Kernel:
        in_place = variants(self.op, self.format)[0].in_place
        return Kernel(
            self.op,
            f"{self.language}-{self.name}",
            share,
            self.format,
            activations=self.activations,
            in_place=in_place,
        )

    def _edited_numba(self, edit: Edit, folder: Path) -> Kernel:
        """Ours, its module changed: imported under another name from a folder of its own."""
        right = find("/".join(filter(None, (self.op, "cpu", self.variant, self.format))))
        module = sys.modules[right.share.function.__module__]
        edited = _imported(edit.of((NUMBA_FOLDER / edit.file).read_text()), folder)
        for name, value in vars(module).items():
            if value is right.share:
                return replace(right, share=getattr(edited, name))
            if isinstance(value, dict) and value.get(self.format) is right.share:
                return replace(right, share=getattr(edited, name)[self.format])
        raise ValueError(f"{edit.file} has no share of {right.name}")

    def _edited_cuda(self, edit: Edit, folder: Path) -> AnyKernel:
        """Ours, its sources copied to a folder and changed there."""
        for path in (*CUDA_FOLDER.glob("*.cu"), *CUDA_FOLDER.glob("*.cuh")):
            shutil.copy(path, folder)
        file = folder / edit.file
        file.write_text(edit.of(file.read_text()))
        own = self.op, self.variant, self.format
        right = next(k for k in EVERY_CUDA if (k.op, k.variant, k.format) == own)
        stages = tuple(
            replace(stage, folder=folder) if isinstance(stage, Launch) else stage
            for stage in right.stages
        )
        return replace(right, stages=stages)


def _imported(source: str, folder: Path) -> ModuleType:
    """A source as a module that is found by its name, as those are that certificates bind."""
    name = f"planted_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    (folder / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    return importlib.import_module(name)


def in_c(op: str, *edits: Any, formats: Iterable[str | None] = (None,)) -> tuple[Bug, ...]:
    """Edits of the op's kernel in C: (name, old, new), then who sees it if not its cases."""
    return tuple(
        Bug(op, "c", name, Edit(f"{op}.c", old, new), kind, *seen)
        for kind in formats
        for name, old, new, *seen in edits
    )


def in_numba(
    op: str, file: str, *edits: Any, format: str | None = None, variant: str = "generic"
) -> tuple[Bug, ...]:
    """The same, of a file of kernels/cpu."""
    return tuple(
        Bug(op, "numba", name, Edit(file, old, new), format, *seen, variant=variant)
        for name, old, new, *seen in edits
    )


def in_cuda(
    op: str,
    file: str,
    edits: Iterable[tuple[str, str, str]],
    format: str | None = None,
    variant: str = "generic",
) -> tuple[Bug, ...]:
    """The same, of a file of kernels/cuda."""
    return tuple(
        Bug(op, "cuda", name, Edit(file, old, new), format, variant=variant)
        for name, old, new in edits
    )


def in_python(
    op: str,
    *functions: Callable[..., Any],
    formats: Iterable[str | None] = (None,),
    activations: str = "float32",
) -> tuple[Bug, ...]:
    """Functions with the reference's parameters, by whose names the bugs are called."""
    return tuple(
        Bug(op, "python", _called(f), storing(f), kind, activations=activations)
        for kind in formats
        for f in functions
    )


def sharing(op: str, *works: Work, formats: Iterable[str | None] = (None,)) -> tuple[Bug, ...]:
    """Functions that do one thread's share."""
    return tuple(Bug(op, "python", _called(w), w, kind) for kind in formats for w in works)


def _called(function: Callable[..., Any]) -> str:
    return function.__name__.replace("_", "-")
