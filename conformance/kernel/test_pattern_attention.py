"""Block-sparse attention compared with attention's own kernel."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.machine_kernels import run
from kernels.table import find
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.laws.attention.attention import LONG, no_sinks, scene
from reference.op import Case


@pytest.mark.parametrize("format", FORMATS_OF_CACHE)
def test_full_masks_have_the_bits_of_attention(format):
    """With a full mask each token has attention's bits, for few and many tokens."""
    for tokens, head_dim in ((3, 64), (90, 64), (70, 96)):
        case = Case({"head_dim": head_dim}, format=format)
        given = {**scene(case, LONG, tokens), "sinks": no_sinks(4), "slopes": np.zeros(4, "f4")}
        ends = LONG - 7 - tokens + np.arange(tokens) + 1
        given["spans"] = np.stack([0 * ends, 0 * ends, ends], axis=1).astype(np.int32)
        dense = run(find(f"attention/cpu/generic/{format}"), **given)
        for name in ("positions", "cell_positions", "slopes", "sinks"):
            del given[name]
        sees = np.ones((4, 3, LONG), np.uint8)
        sees[:, :, LONG - 7 :] = 0  # which nobody's span reaches
        chosen = {"sees": sees, "before": np.full_like(given["q"], np.nan)}
        kernel = find(f"pattern_attention/cpu/generic/{format}")
        assert_array_equal(run(kernel, **given, **chosen), dense)
