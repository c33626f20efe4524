"""The race of policies behind a long text."""

import sys

from bench import long_contexts


def test_policies_race_behind_a_text(monkeypatch, capsys):
    """Of each policy a ratio is told, and of Quest what share of a step its bookkeeping is."""
    given = "story --held 300 --context 400 --threads 2 --seconds 0.1"
    policies = ["--kv-policy", "quest:budget=64", "knorm:capacity=64"]
    monkeypatch.setattr(sys, "argv", ["long_contexts", *given.split(), *policies])
    long_contexts.main()
    whole, quest, share, knorm = capsys.readouterr().out.splitlines()
    assert whole.startswith("behind 300 tokens a step takes ")
    assert [line.split(":")[0] for line in (quest, knorm)] == ["quest", "knorm"]
    assert 0 < float(share.split()[1].rstrip("%")) < 100
