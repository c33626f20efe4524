"""Laws of the state space scans."""

from dataclasses import replace

import numpy as np

from reference.laws.common import Make, other_bits
from reference.op import Apply, Case, Law

TOKENS = 5


def scan_laws(make: Make) -> tuple[Law, ...]:
    """The laws of either scan."""

    def no_time_passes(apply: Apply, case: Case) -> str:
        """dt = 0 leaves a state unchanged, bit for bit, for any a and input."""
        given = make(replace(case, shape={**case.shape, "tokens": TOKENS}, values="normal"))
        sources, targets = np.full((2, TOKENS), -1, np.int32)
        sources[0], targets[-1] = 0, 1
        given |= {"dt": np.zeros_like(given["dt"]), "sources": sources, "targets": targets}
        after = apply(given)["states"]
        return other_bits({"states": after[1]}, {"states": given["before"][0]})

    def nothing_is_kept(apply: Apply, case: Case) -> str:
        """With full decay, a token's output does not depend on earlier tokens."""
        given = make(replace(case, shape={**case.shape, "tokens": TOKENS}, values="normal"))
        sources, targets = np.full((2, TOKENS), -1, np.int32)
        sources[0] = 0
        given |= {"sources": sources, "targets": targets}
        given |= {"a": np.full_like(given["a"], -1e6), "dt": 1 + given["dt"]}
        whole = apply(given)["out"]
        apart = apply({**given, "sources": np.zeros_like(sources)})["out"]
        return other_bits({"out": whole}, {"out": apart})

    return Law("no-time-passes", no_time_passes), Law("nothing-is-kept", nothing_is_kept)
