"""Timings: seconds and tokens are added up where they were spent."""

import time

import pytest

from engine.timings import Span, Timings


def test_measured_blocks_add_up() -> None:
    """A span sums the time and the tokens of its blocks, and the rate is their quotient."""
    span = Span()
    started = time.perf_counter()
    for tokens in (3, 0, 4):
        with span.measure(tokens):
            time.sleep(0.002)
    elapsed = time.perf_counter() - started
    assert 0.006 <= span.seconds <= elapsed
    assert span.tokens == 7
    assert span.rate == pytest.approx(7 / span.seconds)


def test_nothing_has_no_rate() -> None:
    """No time gives a rate of 0, not a division by zero."""
    assert Span().rate == 0
    assert Span(0.0, 5).rate == 0


def test_failed_block_counts_its_time_alone() -> None:
    """A block that raises has cost its time but made no tokens, and its error goes on."""
    span = Span()
    with pytest.raises(KeyError), span.measure(5):
        raise KeyError
    assert span.seconds > 0
    assert span.tokens == 0


def test_total_is_the_generation() -> None:
    """The total is prompt, generation and sampling, without loading; samplings are no tokens."""
    timings = Timings(load=Span(9.0), prompt=Span(1.0, 10), eval=Span(2.0, 4), sample=Span(0.5, 5))
    assert timings.total == Span(3.5, 14)


def test_start_forgets_the_last_generation() -> None:
    """A new generation begins at zero; the time of loading stays."""
    timings = Timings(Span(9.0), Span(1.0, 10), Span(2.0, 4), Span(0.5, 5))
    timings.start()
    assert timings == Timings(Span(9.0), Span(), Span(), Span())
    assert Timings.empty().total == Span()
