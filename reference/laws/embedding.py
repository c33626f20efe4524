"""Laws of the token embedding."""

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import Make, other_bits
from reference.op import Apply, Case, Law


def laws(make: Make) -> tuple[Law, ...]:
    def all_rows_are_the_table(apply: Apply, case: Case) -> str:
        """Looking up all tokens in order dequantises the table, bit for bit."""
        given = make(case)
        tokens = np.arange(len(given["weight"]), dtype=np.int32)
        table = FORMATS[given["format"]].dequantise(given["weight"])
        return other_bits(apply({**given, "tokens": tokens}), {"out": table})

    def a_token_has_its_row_anywhere(apply: Apply, case: Case) -> str:
        """Repeated and permuted tokens give their rows repeated and permuted."""
        given, rng = make(case), case.rng()
        tokens = rng.integers(0, len(given["weight"]), 33, dtype=np.int32)
        order = rng.integers(0, 33, 50)
        once = apply({**given, "tokens": tokens})["out"]
        return other_bits(apply({**given, "tokens": tokens[order]}), {"out": once[order]})

    return (
        Law("all-rows-are-the-table", all_rows_are_the_table),
        Law("a-token-has-its-row-anywhere", a_token_has_its_row_anywhere),
    )
