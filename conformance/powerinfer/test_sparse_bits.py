"""Bit identity of sparse models with each token's own masks: the tests of dense ones."""

import pytest

from conformance.support.bit_laws import (  # noqa: F401 - laws, of this file's subject
    ROOM,
    Subject,
    subject_of,
    test_batch_limit,
    test_batched_or_alone,
    test_chunks,
    test_copied_prefix,
    test_removed_and_evaluated_anew,
    test_threads,
    test_tree_of_tokens,
)
from conformance.support.models.sparse_files import SMALL_MODELS


@pytest.fixture(params=SMALL_MODELS, scope="module")
def subject(request, tmp_path_factory):
    path = SMALL_MODELS[request.param].write(tmp_path_factory.mktemp("bits") / "small.gguf")
    found = subject_of(path, {**ROOM, "sparse": "on"})
    assert sum(step.node.op == "sparse_linear" for step in found.model.plan.steps) >= 2
    yield found
    found.model.close()
