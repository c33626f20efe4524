"""Every test named in docs/promises.md exists."""

import re

import pytest

from conformance.support.rooms import ROOT

ROW = re.compile(r"\| (.+) \| (.+) \|")


def named() -> list[tuple[str, str]]:
    """Each test that the page names, with its file: one without a file is in the previous one."""
    found, file = [], ""
    for line in (ROOT / "docs/promises.md").read_text().splitlines():
        row = ROW.fullmatch(line)
        for name in re.findall(r"`([^`]+)`", row[2]) if row else ():
            file, name = name.split("::") if "::" in name else (file, name)
            found.append((file if file.startswith("bench/") else f"conformance/{file}", name))
    return found


def test_the_page_has_promises():
    """The parser finds the rows."""
    assert len(named()) > 80


@pytest.mark.parametrize(("file", "name"), named(), ids=lambda x: x.rpartition("/")[2])
def test_a_promise_is_held(file, name):
    """The test is in the named file, or is a law that the file imports for its own subject."""
    text = (ROOT / file).read_text()
    assert f"\ndef test_{name}(" in text or f"\n    test_{name},\n" in text
