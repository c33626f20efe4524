"""Planted bugs, and how the wrong kernels are built from them."""

import hashlib
import importlib
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

import numpy as np

import kernels.cpu
import reference
from conformance.bugs.shares import C_FOLDER, CShare, PythonShare, Work, storing
from kernels.call import AnyKernel
from kernels.cpu.runtime.share import Share
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime.launch import Launch, ours
from kernels.kernel import Kernel
from kernels.table import find, variants
from reference.formats import FORMATS
from reference.op import Shape
from reference.table import OPS

FOLDERS = {  # of edited files; CUDA sources are found by name
    "numba": Path(kernels.cpu.__path__[0]), "python": Path(reference.__path__[0]), "c": C_FOLDER,
}  # fmt: skip

Language = Literal["c", "numba", "cuda", "python"]
# construction: inspection of the compiled code; cases: the op's; shape: those of a model's node
Seen = Literal["construction", "cases", "shape"]


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `old`, which occurs once in `file`, by `new`."""

    file: str
    old: str
    new: str

    def of(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} stands {text.count(self.old)} times")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Bug:
    """A wrong kernel of an op in a format, and the stage and shapes that must reject it.

    It is a Python function, or an edit of a right kernel (conformance/bugs/c, or ours) or the
    reference.
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
        """The wrong kernel; its sources and compiled files are written to the folder."""
        if not isinstance(self.does, Edit):
            return self._row(PythonShare(str(self), self.op, self.format, self.does))
        if self.language == "python":
            work = storing(self._edited_formula())
            return self._row(PythonShare(str(self), self.op, self.format, work))
        if self.language == "c":
            return self._row(CShare(str(self), self.op, self.format, self.edited, folder))
        return (self._edited_cuda if self.language == "cuda" else self._edited_numba)(folder)

    @property
    def edited(self) -> str:
        """The edited source."""
        assert isinstance(self.does, Edit)
        folder, file = FOLDERS.get(self.language), self.does.file
        return self.does.of((folder / file if folder else ours()[file]).read_text())

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

    def _edited_formula(self) -> Callable[..., Any]:
        """The reference of the edited module, imported under another name."""
        module = ModuleType("planted")
        exec(compile(self.edited, str(self), "exec"), vars(module))
        return cast(Callable[..., Any], getattr(module, OPS[self.op].reference.__name__))

    def _edited_numba(self, folder: Path) -> Kernel:
        """Our kernel with its module edited: imported under another name from its own folder."""
        right = find("/".join(filter(None, (self.op, "cpu", self.variant, self.format))))
        assert isinstance(self.does, Edit)
        file = ".".join(("kernels", "cpu", *Path(self.does.file).with_suffix("").parts))
        module, edited = importlib.import_module(file), _imported(self.edited, folder)
        if not _holds(module, right.share):  # then the kernel's own module imports it
            known = (m for name, m in sys.modules.items() if name.startswith("kernels.cpu."))
            module = next(m for m in known if _holds(m, right.share))
            source = Path(str(module.__file__)).read_text()
            edited = _imported(source.replace(file, edited.__name__), folder)

        def changed(share: Share | None) -> Share | None:
            for name, value in vars(module).items():
                if share and value is share:
                    return cast(Share, getattr(edited, name))
                if share and isinstance(value, dict) and value.get(self.format) is share:
                    return cast(Share, getattr(edited, name)[self.format])
            return None

        if (first := changed(right.share)) is None:
            raise ValueError(f"{self}: there is no share of {right.name}")
        if right.missing() and (emulated := getattr(edited, "EMULATED_SHARES", {})):  # no tiles
            return replace(right, share=emulated[self.format], requires=frozenset())
        return replace(right, share=first, then=changed(right.then) or right.then)

    def _edited_cuda(self, folder: Path) -> AnyKernel:
        """Our CUDA kernel with its sources copied to a folder and edited there."""
        for path in ours().values():
            shutil.copy(path, folder)
        assert isinstance(self.does, Edit)
        (folder / self.does.file).write_text(self.edited)
        own = self.op, self.variant, self.format
        right = next(k for k in EVERY_CUDA if (k.op, k.variant, k.format) == own)
        stages = tuple(
            replace(stage, folder=folder) if isinstance(stage, Launch) else stage
            for stage in right.stages
        )
        return replace(right, stages=stages)


def _holds(module: ModuleType, share: Share) -> bool:
    """Whether a share is a variable of a module, or a value of a dict there."""
    rows = (v.values() if isinstance(v, dict) else (v,) for v in [*vars(module).values()])
    return any(one is share for one in chain.from_iterable(rows))


def _imported(source: str, folder: Path) -> ModuleType:
    """Import a source by module name, as for modules that certificates bind."""
    name = f"planted_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    (folder / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    return importlib.import_module(name)


def edits(path: Path) -> Iterator[Bug]:
    """The bugs of a file of edits: tables by kernel and source file, with rows of the bug's name,
    the old text, the new text, and the stage that rejects it unless that is the op's cases. A
    format follows the kernel's name, or precedes the row's. Rows of `if` are conditions, which are
    put into the {} of their rule's new text. Rows for a reference may instead describe the
    arguments that the formula is `given`."""
    for kernel, sources in tomllib.loads(path.read_text()).items():
        op, language, *rest = kernel.split("/")
        *variant, formats = rest if rest and rest[-1].split(",")[0] in FORMATS else (*rest, "")
        for file, rows in sources.items():
            rows |= _conditional(**rows.pop("if", {}))
            by_format = [(kind, rows) for kind in formats.split(",")]
            if not formats and rows.keys() <= FORMATS.keys():
                by_format = list(rows.items())
            for kind, own in by_format:
                for name, row in own.items():
                    if isinstance(row, dict):
                        yield Bug(op, language, name, given(op, row), kind or None)
                        continue
                    old, new, *seen = row
                    yield Bug(
                        op, language, name, Edit(file, old, new), kind or None, *_who(*seen),
                        variant=variant[0] if variant else "generic",
                    )  # fmt: skip


def given(op: str, changes: Mapping[str, str]) -> Work:
    """The formula of an op with changed arguments or a changed result: NumPy expressions of its
    arguments by name, of `out`, the formula's result, and of `op`, the formula."""
    formula = OPS[op].reference

    def wrong(**inputs: Any) -> Any:
        known = {"np": np, "op": formula, **inputs}
        others = {name: eval(text, known) for name, text in changes.items() if name != "out"}
        out = formula(**{**inputs, **others})
        return eval(changes["out"], {**known, "out": out}) if "out" in changes else out

    return storing(wrong)


def _conditional(rule: Sequence[str] = (), **rows: Any) -> dict[str, list[Any]]:
    """Rows of edits whose new text is the rule's, with each row's condition put in."""
    found = {}
    for name, row in rows.items():
        condition, *seen = [row] if isinstance(row, str) else row
        found[name] = [rule[0], rule[1].replace("{}", condition), *seen]
    return found


def _who(seen: Seen | Shape = "cases") -> tuple[Seen, tuple[Shape, ...]]:
    return (seen, ()) if isinstance(seen, str) else ("shape", (seen,))


def in_python(
    op: str,
    *functions: Callable[..., Any],
    formats: Iterable[str | None] = (None,),
    activations: str = "float32",
    **formulas: Callable[..., Any],
) -> tuple[Bug, ...]:
    """Functions with the reference's parameters: bugs are named after them or the keywords."""
    named = formulas | {f.__name__: f for f in functions}
    return tuple(
        Bug(op, "python", _called(name), storing(f), kind, activations=activations)
        for kind in formats
        for name, f in named.items()
    )


def changed(reference: Callable[..., Any], /, **changes: Any) -> Callable[..., Any]:
    """The reference with some arguments changed: by a function of the right one, or to a value."""

    def wrong(**given: Any) -> Any:
        others = {n: of(given[n]) if callable(of) else of for n, of in changes.items()}
        return reference(**{**given, **others})

    return wrong


def sharing(op: str, *works: Work, formats: Iterable[str | None] = (None,)) -> tuple[Bug, ...]:
    """Functions that compute one thread's share."""
    return tuple(
        Bug(op, "python", _called(work.__name__), work, kind) for kind in formats for work in works
    )


def _called(name: str) -> str:
    return name.replace("_", "-")
