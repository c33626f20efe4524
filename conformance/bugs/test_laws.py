"""Every law of every op is broken by a planted bug."""

import pytest

from conformance.bugs.laws import breaker
from reference.op import Law
from reference.table import OPS

LAWS = [pytest.param(op, law, id=f"{op.name}-{law.name}") for op in OPS.values() for law in op.laws]


@pytest.mark.parametrize(("op", "law"), LAWS)
def test_every_law_can_fail(op, law):
    """A planted bug of the op breaks the law."""
    assert breaker(op, law), f"no planted bug breaks the law {law.name} of {op.name}"


def test_vacuous_laws_are_detected():
    """A law that is always true has no breaker."""
    assert not breaker(OPS["add"], Law("nothing", lambda *_: ""))
