"""assay run with drafts: the same text, figures as JSON, colours, and errors in one plain line."""

import json
import re

import pytest

from conformance.support.models.spelling import Spelling
from conformance.support.program import fault, misuse
from engine import Engine, SamplingParams
from engine.shell.run import GREEN, PLAIN
from engine.speculation.settings import LookaheadTrie

PROMPT = "Once upon a time"
ASKED = ("run", "story", "-p", PROMPT, *["-n", "24", "--temp", "0", "-t", "1", "--ignore-eos"])
KINDS: dict[str, tuple[str, ...]] = {
    "draft": ("--draft", "story-draft"),
    "tree": ("--draft", "story-draft", "--speculate", "tree", "--draft-p-split", "0.05"),
    "lookup": ("--speculate", "lookup"),
    "trie": ("--speculate", "trie", "--draft-max", "8"),
    "lookahead": ("--speculate", "lookahead"),
}
FIGURES = {
    "drafted", "accepted", "acceptance", "acceptance_by_position", "steps", "tokens_per_step",
    "draft_seconds", "verify_seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def plain():
    with Engine.load("story", threads=1) as engine:
        params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
        return "".join(piece.text for piece in engine.stream(PROMPT, params))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_json_has_the_figures(inside, plain, kind):
    """--json has the plain text and the figures of drafts."""
    code, stdout, _ = inside(*ASKED, *kind, "--json")
    found = json.loads(stdout)
    assert (code, found["text"]) == (0, plain)
    figures = found["timings"]["speculation"]
    assert figures.keys() == FIGURES
    assert figures["accepted"] <= figures["drafted"]
    assert figures["steps"] * figures["tokens_per_step"] == pytest.approx(23)
    assert len(figures["acceptance_by_position"]) <= figures["drafted"]
    assert figures["verify_seconds"] > 0


def test_json_without_drafts_has_none(inside, plain):
    found = json.loads(inside(*ASKED, "--json")[1])
    assert found["text"] == plain
    assert "speculation" not in found["timings"]


def test_the_summary_reports_drafts(inside):
    code, _, stderr = inside(*ASKED, *KINDS["lookahead"])
    assert code == 0
    line = r"drafted (\d+) tokens, accepted (\d+) \([\d.]+%\), [\d.]+ tokens a step"
    counts = re.search(line, stderr)
    assert int(counts[1]) >= int(counts[2])
    assert "verify time" in stderr
    assert "draft time" in stderr
    assert "drafted" not in inside(*ASKED)[2]


def test_colour_shows_drafted_tokens(inside, plain):
    """Drafted tokens are green on request, and without colours the text is the plain one."""
    _, coloured, _ = inside(*ASKED, *KINDS["lookahead"], "--colour")
    assert GREEN in coloured
    assert coloured.count(GREEN) == coloured.count(PLAIN)
    whole = PROMPT + plain
    assert coloured.replace(GREEN, "").replace(PLAIN, "").strip() == whole.strip()
    assert inside(*ASKED, *KINDS["lookahead"])[1].strip() == whole.strip()
    assert GREEN not in inside(*ASKED, "--color")[1]


BOTH = ("--draft", "story-draft")
MISUSES: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown kind": (("--speculate", "magic"), "unknown speculation 'magic': want linear"),
    "no number": (("--draft-max", "many"), "draft-max"),
    "draft-max 0": ((*BOTH, "--draft-max", "0"), "--draft-max must be at least 1, got 0"),
    "draft-min -1": ((*BOTH, "--draft-min", "-1"), "--draft-min must be at least 0, got -1"),
    "p-min 2": ((*BOTH, "--draft-p-min", "2"), "--draft-p-min must be 0 to 1, got 2.0"),
    "p-min nan": ((*BOTH, "--draft-p-min", "nan"), "--draft-p-min must be 0 to 1, got nan"),
    "p-split -1": (
        (*BOTH, "--speculate", "tree", "--draft-p-split", "-1"),
        "--draft-p-split must be",
    ),
    "no branches": (
        (*BOTH, "--speculate", "tree", "--draft-parallel", "0"),
        "--draft-parallel must be",
    ),
    "threshold nan": (("--draft-threshold", "nan"), "--draft-threshold is nan, not a number"),
}  # fmt: skip
FAULTS: dict[str, tuple[tuple[str, ...], str]] = {
    "no draft model": (("--speculate", "linear"), "drafting needs a draft model"),
    "no draft model for a tree": (("--speculate", "tree"), "drafting needs a draft model"),
    "no such file": (("--draft", "nowhere.gguf"), "nowhere.gguf: cannot be read: no such file"),
    "a dense model for itself": (("--draft-threshold", "2"), "no block skips neurons"),
    "two who draft": ((*BOTH, "--draft-threshold", "2"), "a draft model and a stricter"),
    "a model for nothing": ((*BOTH, "--speculate", "trie"), "LookaheadTrie drafts without a model"),
    "steps of one token": (("--speculate", "lookup", "-b", "1"), "steps of at least 2 tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_unusable_drafts_are_one_line(inside, name):
    arguments, words = FAULTS[name]
    assert words in fault(inside(*ASKED, *arguments))


@pytest.mark.parametrize("name", MISUSES)
def test_invalid_draft_options_are_wrong_usage(inside, name):
    arguments, words = MISUSES[name]
    assert words in misuse(inside(*ASKED, *arguments))


def test_drafts_of_another_vocabulary_are_refused(inside, tmp_path):
    """The line names the draft's file and how the two differ."""
    draft = Spelling().write(tmp_path / "letters.gguf")
    line = fault(inside(*ASKED, "--draft", draft))
    assert line.startswith(f"{draft}: the draft's vocabulary ")


def test_too_large_drafts_are_limited():
    """A draft with more branches than the cache has sequences is limited to what fits."""
    with Engine.load("story", threads=1, batch=16, speculation=LookaheadTrie(5000)) as engine:
        pieces = list(engine.stream("Once upon a time"))
        assert len(pieces) == 16
        assert engine.timings.speculation is not None
