"""Timings: seconds and tokens are added up where they were spent."""

import pytest

from engine.generation.timings import Span, Timings


def test_failed_block_counts_its_time_alone():
    """A block that raises has cost its time but made no tokens, and its error goes on."""
    span = Span()
    with pytest.raises(KeyError), span.measure(5):
        raise KeyError
    assert span.seconds > 0
    assert span.tokens == 0


def test_start_forgets_the_last_generation():
    """A new generation begins at zero; the time of loading stays."""
    timings = Timings(Span(9.0), Span(1.0, 10), Span(2.0, 4), Span(0.5, 5))
    timings.start()
    assert timings == Timings(Span(9.0), Span(), Span(), Span())
    assert Timings.empty().total == Span()
