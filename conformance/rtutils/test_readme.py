"""The commands, programs and edits in README and docs work."""

import re

import pytest

from conformance.support.pages import Block, Place, blocks, edited
from conformance.support.rooms import ROOT

README = ROOT / "README.md"
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "reports")
COMMANDS = [command for block in blocks(README) for command in block.commands()]
WHOLE_PROGRAMS = [block for block in blocks(README) if block.is_program]


def shows(block: Block) -> bool:
    """Whether a page has anything to run."""
    return bool(block.title or block.is_program or block.commands())


SHOWING = [path for path in PAGES if any(map(shows, blocks(path)))]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A folder for the files that commands write."""
    return Place(tmp_path_factory.mktemp("readme"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_assay_command_of_the_readme_succeeds(command, elsewhere):
    """Each line that starts with assay, in order, exits with 0 and prints something."""
    elsewhere.run(command)


@pytest.mark.parametrize("block", WHOLE_PROGRAMS, ids=lambda block: block.text.splitlines()[0])
def test_every_python_block_of_the_readme_runs(block, elsewhere):
    """Each Python block with imports runs as a program."""
    elsewhere.do(block)


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.stem)
def test_examples_of_a_page_work(page, tmp_path):
    """A page's files, edits, commands and programs work in order, in a copy if it edits rooms."""
    shown, place = list(blocks(page)), Place(tmp_path)
    if any(block.is_of_a_room for block in shown):
        place = place.copied()
    for block in shown:
        place.do(block)


def test_the_readme_is_short_and_has_commands():
    """It fits one view; and the tests above have something to test."""
    assert len(README.read_text().splitlines()) <= 150
    assert len(COMMANDS) >= 4
    assert {"tutorial", "adding-an-op", "adding-a-family", "shell", "python"} <= {
        page.stem for page in SHOWING
    }


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_make_targets_exist(page):
    """Every `make` target that a page names stands in the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:`|^)make ([\w-]+)", page.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_page_edits_match_exactly_once():
    """Lines that occur once are replaced; otherwise the page is wrong."""
    diff = " a\n-b\n+c\n"
    assert edited("a\nb\na\n", diff) == "a\nc\na\n"
    for text in ("a\n", "a\nb\na\nb\n"):
        with pytest.raises(ValueError, match="wanted once"):
            edited(text, diff)


GLOSSARY = re.findall(
    r"^\| (.+?) \| .+ \| `([\w/]+\.\w+)` \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE
)


@pytest.mark.parametrize(("words", "file"), GLOSSARY, ids=lambda value: value.replace("`", ""))
def test_the_glossarys_files_have_its_words(words, file):
    """The file exists, and contains each name that the row marks as code."""
    text = (ROOT / file).read_text()
    for name in re.findall(r"`(\w+)`", words):
        assert re.search(rf"\b{name}\b", text), name
