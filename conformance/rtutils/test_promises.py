"""docs/promises.md names tests that there are."""

import re

import pytest

from conformance.support.rooms import ROOT

ROW = re.compile(r"\| (.+) \| (.+) \|")


def named() -> list[tuple[str, str]]:
    """Each test that the page names, with its file: one named alone is in the file before it."""
    found, file = [], ""
    for line in (ROOT / "docs/promises.md").read_text().splitlines():
        row = ROW.fullmatch(line)
        for name in re.findall(r"`([^`]+)`", row[2]) if row else ():
            file, name = name.split("::") if "::" in name else (file, name)
            found.append((file if file.startswith("bench/") else f"conformance/{file}", name))
    return found


def test_the_page_has_promises():
    """What reads it finds its rows."""
    assert len(named()) > 80


@pytest.mark.parametrize(("file", "name"), named(), ids=lambda x: x.rpartition("/")[2])
def test_a_promise_is_held(file, name):
    """The test is where the page says, or is a law that the file has of its own subject."""
    text = (ROOT / file).read_text()
    assert f"\ndef test_{name}(" in text or f"\n    test_{name},\n" in text
