"""The same answer every way: whatever the threads, chunks, batches and cells, not a bit differs.

Every weight format with both float formats of the cache, and head sizes that flash attention serves
as well as those that fall to the scalar kernel; quantised caches with float and quantised weights.
"""

from dataclasses import replace
from itertools import product

import pytest

from conformance.support.bit_laws import (  # noqa: F401 - laws, of this file's subject
    ROOM,
    Subject,
    subject_of,
    test_batch_limit,
    test_batched_or_alone,
    test_chunks,
    test_copied_prefix,
    test_fragmented_cache,
    test_removed_and_evaluated_anew,
    test_steps_repeat,
    test_threads,
    test_tree_of_tokens,
    test_wanted_rows,
)
from conformance.support.models.small_models import Small

FORMATS = ("F32", "F16", "BF16", "Q8_0", "Q4_0")
MIXES = {  # formats of one file, the second for what Q4_K_M has in Q6_K
    "Q4_K": "Q6_K", "Q2_K": "Q3_K", "Q5_K": "IQ4_XS", "IQ4_NL": "MXFP4", "Q4_1": "TQ2_0",
    "Q5_1": "Q5_0", "TQ1_0": "IQ2_XS",
}  # fmt: skip
SUBJECTS = [
    *product(FORMATS, ("F32", "F16"), (16, 24)),
    *product(("F16", "Q4_0"), ("Q8_0", "Q4_0"), (32,)),  # whole blocks, as the fast kernel wants
    *product(MIXES, ("F16",), (32,)),
]
ATTENTION = {16: "generic", 24: "scalar", 32: "generic"}


@pytest.fixture(
    params=SUBJECTS,
    ids=[f"{f} {MIXES.get(f, '')}, cache {kv}, heads of {d}" for f, kv, d in SUBJECTS],
    scope="module",
)
def subject(request, tmp_path_factory):
    weights, kv_format, head_dim = request.param
    small = Small(format=weights, head_dim=head_dim, seed=3)
    if weights in MIXES:
        small = replace(small, finer=MIXES[weights], hidden=256, heads=8, ffn=256)
    path = small.write(tmp_path_factory.mktemp("bits") / "small.gguf")
    found = subject_of(path, {**ROOM, "kv_format": kv_format})
    chosen = {s.kernel.variant for s in found.model.plan.steps if s.node.op == "attention"}
    assert chosen == {ATTENTION[head_dim]}
    yield found
    found.model.close()
