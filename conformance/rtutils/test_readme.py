"""README's commands and code do what they say."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", README, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


COMMANDS = [
    line for block in blocks("sh") for line in block.splitlines() if line.startswith("assay ")
]
WHOLE_PROGRAMS = [block for block in blocks("python") if "import" in block]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what the commands write does not disturb anyone."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_assay_command_of_the_readme_succeeds(command: str, elsewhere: Path) -> None:
    """Each line that starts with assay, in turn, exits 0 and prints something."""
    program = [sys.executable, "-c", "from engine.shell import main; main()"]
    done = subprocess.run(
        [*program, *shlex.split(command, comments=True)[1:]],
        cwd=elsewhere,
        env={**os.environ, "ASSAY_RESULTS": str(elsewhere / "results"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("code", WHOLE_PROGRAMS, ids=lambda code: code.splitlines()[0])
def test_every_python_block_of_the_readme_runs(code: str) -> None:
    """Each Python block with imports runs as a program."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_has_commands_and_programs() -> None:
    """The tests above have something to test."""
    assert len(COMMANDS) >= 5
    assert len(WHOLE_PROGRAMS) >= 2


def test_make_targets_of_the_readme_exist() -> None:
    """Every `make` target that README names stands in the Makefile."""
    targets = set(re.findall(r"\bmake ([\w-]+)", README))
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
