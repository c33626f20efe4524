"""Laws of add_squares."""

from reference.laws.common import Make, other_bits
from reference.op import Apply, Case, Law


def signs_do_not_count(make: Make) -> Law:
    """-x adds what x does."""

    def broken(apply: Apply, case: Case) -> str:
        given = make(case)
        return other_bits(apply({**given, "x": -given["x"]}), apply(given))

    return Law("signs-do-not-count", broken)
