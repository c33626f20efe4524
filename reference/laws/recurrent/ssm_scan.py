"""Laws of the scans of state space models."""

from dataclasses import replace

import numpy as np

from reference.laws.common import Make, other_bits
from reference.op import Apply, Case, Law

TOKENS = 5


def scan_laws(make: Make) -> tuple[Law, ...]:
    """Those of an op with these arguments."""

    def no_time_passes(apply: Apply, case: Case) -> str:
        """Steps dt of 0 leave a state as it is, bit for bit, whatever decays and enters."""
        given = make(replace(case, shape={**case.shape, "tokens": TOKENS}, values="normal"))
        sources, targets = np.full((2, TOKENS), -1, np.int32)
        sources[0], targets[-1] = 0, 1
        given |= {"dt": np.zeros_like(given["dt"]), "sources": sources, "targets": targets}
        after = apply(given)["states"]
        return other_bits({"states": after[1]}, {"states": given["before"][0]})

    def nothing_is_kept(apply: Apply, case: Case) -> str:
        """Where a decays at once, a token's output depends on no token before it."""
        given = make(replace(case, shape={**case.shape, "tokens": TOKENS}, values="normal"))
        sources, targets = np.full((2, TOKENS), -1, np.int32)
        sources[0] = 0
        given |= {"sources": sources, "targets": targets}
        given |= {"a": np.full_like(given["a"], -1e6), "dt": 1 + given["dt"]}
        whole = apply(given)["out"]
        apart = apply({**given, "sources": np.zeros_like(sources)})["out"]
        return other_bits({"out": whole}, {"out": apart})

    return Law("no-time-passes", no_time_passes), Law("nothing-is-kept", nothing_is_kept)
