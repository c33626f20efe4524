"""`python docs/tools/picture.py`: render a terminal session as docs/pictures/refused.svg."""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from conformance.support.pages import PROGRAM, Place

OUT = Path(__file__).resolve().parents[1] / "pictures/refused.svg"
WIDTH = 92
EDIT = "sed -i 's/ + eps))/))/' kernels/cpu/rms_norm.py"  # in one of the two variants
SESSION = (
    "assay op rms_norm --shape tokens=7,hidden=2048",
    EDIT,
    'assay run story -p "Once upon a time" -n 20 --temp 0',
    'assay run story -p "Once upon a time" -n 20 --temp 0 --strict',
)
STYLES = {"note:": "yellow", "assay:": "bold red", "variant": "bold", "Once": "cyan"}
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"


def main() -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder)).copied()
        for command in SESSION:
            console.print(Text("$ ", "bold green") + Text(command, "bold"))
            for line in shown(place, command):
                style = next((s for start, s in STYLES.items() if line.startswith(start)), "")
                console.print(Text(line, style))
            if command is not SESSION[-1]:
                console.print()
    svg = console.export_svg(title="Assay", font_aspect_ratio=0.6)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # no font is downloaded
    svg = re.sub(r"font-family: [^;]*;", f"font-family: {FONTS};", svg)
    OUT.write_text("".join(line.rstrip() + "\n" for line in svg.splitlines()))


def shown(place: Place, command: str) -> list[str]:
    """The lines that a command prints on stdout and stderr, without the timings of a run."""
    own = {"ASSAY_CACHE": str(place.cache), "PYTHONPATH": str(place.rooms)}
    words = re.sub("^assay", f"{sys.executable} -c '{PROGRAM[1]}'", command)
    done = subprocess.run(
        ["sh", "-c", words], cwd=place.folder, env={**os.environ, **own},
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    told = re.sub(r"\n+ +load time =.*", "", done.stderr, flags=re.DOTALL).strip()
    return [line.rstrip() for line in f"{told}\n{done.stdout}".splitlines() if line.strip()]


if __name__ == "__main__":
    main()
