"""`python -m conformance.llama.peers`: the engine's gaps to what its peers answered, as a table."""

import tempfile
from pathlib import Path

from conformance.llama.peers import goldens
from conformance.llama.peers.checkpoint import CHECKPOINTS, formats
from conformance.llama.peers.compare import LIMITS, Gap, engine_logits
from conformance.llama.peers.export import export


def main() -> None:
    versions = goldens.index()["peers"]
    print(", ".join(f"{package} {version}" for package, version in versions.items()))
    heads = "".join(f" | {f'{peer}: NMSE, KL':24}" for peer in LIMITS)
    print(f"| {'checkpoint':15} | format{heads} |")
    print(f"|{'-' * 17}|{'-' * 8}" + f"|{'-' * 26}" * len(LIMITS) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for name, checkpoint in CHECKPOINTS.items():
            theirs = goldens.load(name)
            for form in formats(checkpoint):
                path = export(checkpoint, Path(folder) / "model.gguf", form)
                ours = engine_logits(path, checkpoint.tokens())[-goldens.ROWS :]
                gaps = [Gap.between(ours, theirs[peer, form]) for peer in LIMITS]
                cells = "".join(f" | {f'{g.nmse:.1e}, {g.divergence:.1e}':24}" for g in gaps)
                print(f"| {name:15} | {form:6}{cells} |")


if __name__ == "__main__":
    main()
