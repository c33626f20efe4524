"""The code blocks of a page of docs, in order: files to write, edits of files, commands and
programs."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from conformance.support.child import run
from conformance.support.rooms import ROOT
from kernels.cache import cache_folder, read
from kernels.certificates import Store

COPIED = ("reference", "kernels", "engine", "conformance", "bench", "data")
BLOCK = re.compile(
    r'^( *)```(sh|python|diff|toml)(?: title="([^"]+)")?\n(.*?)^ *```', re.MULTILINE | re.DOTALL
)
PROGRAM = ("-c", "from engine.shell import main; main()")  # `assay`, independent of the path
EXIT = re.compile(r"# exit (\d+)")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code in a page, and the file in its title."""

    language: str
    title: str
    text: str

    @property
    def is_program(self) -> bool:
        return self.language == "python" and "import" in self.text

    @property
    def is_of_a_room(self) -> bool:
        """Whether it edits our own code: then the page runs in a copy of all rooms."""
        return self.title.split("/")[0] in COPIED

    def commands(self) -> list[str]:
        """The lines that run our own programs."""
        ours = ("assay ", "python -m conformance.")
        lines = self.text.splitlines() if self.language == "sh" else ()
        return [line for line in lines if line.startswith(ours)]


def blocks(page: Path) -> Iterator[Block]:
    """Every block of a page, without a list's indentation."""
    for indent, language, title, text in BLOCK.findall(page.read_text()):
        yield Block(language, title, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in which a page's blocks are executed, with the rooms to use."""

    folder: Path
    rooms: Path = ROOT
    cache: Path = field(default_factory=cache_folder)

    def copied(self) -> "Place":
        """The same with a copy of the rooms, which a page may edit, and of what was measured."""
        for room in COPIED:  # embedded models are large, and not copied
            unwanted = ("__pycache__", "models") if room == "data" else ("__pycache__",)
            ignored = shutil.ignore_patterns(*unwanted)
            shutil.copytree(ROOT / room, self.folder / room, ignore=ignored)
        for file in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / file, self.folder)
        (self.folder / "data/models").symlink_to(ROOT / "data/models")
        return Place(self.folder, self.folder, self._cache())

    def _cache(self) -> Path:
        """A cache folder with the usual one's contents, except for failed certificates."""
        folder, usual = self.folder / "cache", cache_folder()
        folder.mkdir(mode=0o700)
        (usual / "compiled").mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "compiled").symlink_to(usual / "compiled")
        (folder / "limits.jsonl").write_bytes(read("limits.jsonl") or b"")
        passed = (c for c in Store().load().values() if c.passed)
        Store(folder / "certificates.jsonl").add(list(passed))
        return folder

    def do(self, block: Block) -> None:
        """Write its file, make its edit, or run it and compare the output."""
        path = self.folder / block.title
        if block.language == "diff":
            path.write_text(edited(path.read_text(), block.text))
        elif block.title:
            path.write_text(block.text)
        if block.is_program and not block.is_of_a_room:
            self.python(*((block.title,) if block.title else ("-c", block.text)))
        for command in block.commands():
            self.run(command)

    def run(self, command: str) -> None:
        """Run a line of a page: it prints something, and exits with its comment's status, or 0."""
        program, *words = shlex.split(command, comments=True)
        found = EXIT.search(command)
        told = self.python(*(PROGRAM if program == "assay" else ()), *words, status=found)
        assert found or told.strip() or "chat" in words, f"{command}: it prints nothing"

    def python(self, *arguments: str, status: re.Match[str] | None = None) -> str:
        """Python's standard output."""
        own = {
            "ASSAY_CACHE": str(self.cache),
            "ASSAY_RESULTS": str(self.folder / "results"),
            "PYTHONPATH": str(self.rooms),
        }
        done = run(sys.executable, *arguments, cwd=self.folder, env={**os.environ, **own})
        wanted = int(status[1]) if status else 0
        told = f"{shlex.join(arguments)}: exit {done.returncode}, wanted {wanted}"
        assert done.returncode == wanted, f"{told}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def edited(text: str, diff: str) -> str:
    """Apply a diff: a block's lines without + are replaced by those without -, and occur once."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] or "\n" for line in lines if line[0] != "+")
    new = "".join(line[1:] or "\n" for line in lines if line[0] != "-")
    if text.count(old) != 1:
        raise ValueError(f"these lines stand {text.count(old)} times, wanted once:\n{old}")
    return text.replace(old, new)
