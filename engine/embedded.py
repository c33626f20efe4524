"""Model names: embedded models, and files on the Hugging Face hub."""

from pathlib import Path

from engine.gguf.cursor import GGUFError
from engine.hub import PREFIX, fetch


def embedded_models() -> dict[str, Path]:
    """Paths of the embedded models by name: `story-f16`, and `story` for the first of a family. The
    suffix `.powerinfer.gguf` is dropped."""
    folder = Path(__file__).parents[1] / "data" / "models"
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.gguf")):
        name = path.stem.removesuffix(".powerinfer")
        found[name] = path
        found.setdefault(name.rpartition("-")[0], path)
    return found


def resolve(name: str | Path) -> Path:
    """Resolve a path, an embedded model's name, or a hub file ("hf:...", which is downloaded)."""
    if str(name).startswith(PREFIX):
        return fetch(str(name))
    path = Path(name)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    models = embedded_models()
    if str(name) not in models:
        raise GGUFError(f"{name}: no such file or embedded model: {', '.join(sorted(models))}")
    return models[str(name)]
