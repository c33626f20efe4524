"""Every planted bug: edits of right kernels and wrong formulas, by op, and the general ones."""

from importlib import import_module
from pathlib import Path

from conformance.bugs import general
from conformance.bugs.bug import Bug, edits

FOLDER = Path(__file__).parent
FORMULAS = [path.stem for path in sorted((FOLDER / "formulas").glob("[!_]*.py"))]
EDITED = [bug for path in sorted((FOLDER / "edits").glob("*.toml")) for bug in edits(path)]
PLANTED: tuple[Bug, ...] = (
    *(bug for op in FORMULAS for bug in import_module(f"conformance.bugs.formulas.{op}").BUGS),
    *EDITED,
    *general.BUGS,
)
EVERY = (*PLANTED, *general.NULL)
