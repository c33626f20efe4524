"""The race of policies behind a long text."""

import sys

import numpy as np

from bench import long_contexts
from engine.policies.retrieval import write


def test_policies_race_behind_a_text(monkeypatch, capsys, tmp_path):
    """Of each policy a ratio is told, and of those that put apart what share of a step their
    bookkeeping is."""
    write(heads := tmp_path / "heads.tsv", np.arange(20).reshape(5, 4))
    duo = f"duoattention:sinks=4,recent=16,heads={heads}"
    given = "story --held 300 --context 400 --threads 2 --seconds 0.1"
    policies = ["--kv-policy", "quest:budget=64", "knorm:capacity=64", duo]
    monkeypatch.setattr(sys, "argv", ["long_contexts", *given.split(), *policies])
    long_contexts.main()
    whole, quest, share, knorm, duo, apart = capsys.readouterr().out.splitlines()
    assert whole.startswith("behind 300 tokens, ")
    assert [line.split(":")[0] for line in (quest, knorm, duo)] == [
        "quest",
        "knorm",
        "duoattention",
    ]
    for line in (share, apart):
        assert 0 < float(line.split()[1].rstrip("%")) < 100
