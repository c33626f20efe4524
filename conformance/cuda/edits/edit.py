"""What an edit is, and the wrong kernel that it makes."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from kernels.cuda.fusions import EVERY_CUDA
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.launch import FOLDER, Launch


@dataclass(frozen=True, slots=True)
class Edit:
    """In `file`, `old`, which stands there once, becomes `new`; so a kernel of `op` in `format` is
    wrong."""

    op: str
    name: str
    file: str
    old: str
    new: str
    format: str | None = None
    variant: str = "generic"

    def __str__(self) -> str:
        words = (self.op, "cuda", self.variant, self.format, self.name)
        return "/".join(word for word in words if word)

    def kernel(self, folder: Path) -> CudaKernel:
        """The kernel, of sources that are copied to a folder and changed there."""
        for path in (*FOLDER.glob("*.cu"), *FOLDER.glob("*.cuh")):
            shutil.copy(path, folder)
        text = (folder / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} stands {text.count(self.old)} times")
        (folder / self.file).write_text(text.replace(self.old, self.new))
        own = self.op, self.variant, self.format
        right = next(k for k in EVERY_CUDA if (k.op, k.variant, k.format) == own)
        stages = tuple(
            replace(stage, folder=folder) if isinstance(stage, Launch) else stage
            for stage in right.stages
        )
        return replace(right, stages=stages)


def of(
    op: str,
    file: str,
    edits: Iterable[tuple[str, str, str]],
    format: str | None = None,
    variant: str = "generic",
) -> tuple[Edit, ...]:
    """Edits of one file, (name, old, new) each, for one kernel."""
    return tuple(Edit(op, name, file, old, new, format, variant) for name, old, new in edits)
