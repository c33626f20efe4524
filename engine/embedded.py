"""Models by name: those that come with Assay, and the hub's."""

from pathlib import Path

from engine.gguf.cursor import GGUFError
from engine.hub import PREFIX, fetched


def embedded_models() -> dict[str, Path]:
    """File by name: `story-f16` and, for the first of a family, its short name `story`; of a sparse
    model the name ends before `.powerinfer.gguf`."""
    folder = Path(__file__).parents[1] / "data" / "models"
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.gguf")):
        name = path.stem.removesuffix(".powerinfer")
        found[name] = path
        found.setdefault(name.rpartition("-")[0], path)
    return found


def resolve(name: str | Path) -> Path:
    """The path itself if there is such a file, else the embedded model of that name; the file of
    the hub where a name begins with "hf:"."""
    if str(name).startswith(PREFIX):
        return fetched(str(name))
    path = Path(name)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    models = embedded_models()
    if str(name) not in models:
        raise GGUFError(f"{name}: no such file, nor an embedded model: {', '.join(sorted(models))}")
    return models[str(name)]
