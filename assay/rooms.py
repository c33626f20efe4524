"""The rooms beside this package, found before anybody else's modules of the same names."""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

HERE = Path(__file__).absolute().parents[1]
_claimed: set[str] = set()


class _Beside:
    """Finds the rooms that were claimed, and nothing else."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(HERE)]) if name in _claimed else None


def claim(*rooms: str) -> None:
    """From here on these names mean our rooms, wherever Python would look first; ImportError if
    another module was imported by one of them before."""
    for room in rooms:
        found = sys.modules.get(room)
        folders = [Path(folder) for folder in getattr(found, "__path__", ())]
        if found and [f.resolve() for f in folders] != [(HERE / room).resolve()]:
            other = getattr(found, "__file__", None) or next(iter(folders), found)
            raise ImportError(
                f"assay needs its own package {room}, and {other} was imported by that name:"
                " give it another"
            )
    if _Beside not in sys.meta_path:
        sys.meta_path.insert(0, _Beside)
    _claimed.update(rooms)
