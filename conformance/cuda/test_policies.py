"""Cache policies on an emulated GPU keep and read the same cells as on the CPU, with the same bits
for any split of a prompt and any batch."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.cuda.emulator import compiler
from conformance.llama.peers.compare import Gap
from conformance.support.models.small_models import Small
from conformance.support.sampled import sampled
from engine import (
    H2O,
    Engine,
    KeyDiff,
    MInference,
    MiniCache,
    PyramidKV,
    Quest,
    SamplingParams,
    SnapKV,
)
from engine.cache.session import restore, save

pytestmark = pytest.mark.skipif(not compiler(), reason="no C++ compiler for the emulator")
SMALL = Small(kv_heads=2, seed=3, blocks=3, head_dim=32)
PROMPT = np.random.default_rng(0).integers(3, 60, 30).tolist()
OTHER = PROMPT[::-1]
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
KEPT = 12
NEAR = 2.0**-20  # a key or value near a rounding boundary of float16 may round either way
EACH = {
    "keydiff": KeyDiff(KEPT),
    "snapkv": SnapKV(KEPT, window=4),
    "h2o": H2O(KEPT, recent=5),
    "pyramidkv": PyramidKV(KEPT, window=4),
    "quest": Quest(KEPT, page=4, dense=1),
}


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory) -> Path:
    return SMALL.write(tmp_path_factory.mktemp("policies") / "small.gguf")


@contextmanager
def loaded(path: Path, **options: Any) -> Iterator[Engine]:
    given = {"threads": 1, "context": 64, "sequences": 2, "device": "cuda", **options}
    with Engine.load(path, **given) as engine:
        yield engine


def in_each_configuration(
    path: Path, given: Mapping[str, Any], ways: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Engine]]:
    """An engine for each configuration, with all nodes on the device that it names; in those that
    split prompts, another text is in the batch."""
    for way in ways:
        with loaded(path, **given, **way) as engine:
            targets = {step.kernel.target for step in engine.model.steps}
            assert targets == {"cpu", "cuda"} if "gpu_layers" in way else len(targets) == 1
            assert not engine.model.notes
            if "batch" in way:
                beside = engine.stream(OTHER, GREEDY)
                next(beside)
            yield way, engine


@pytest.mark.parametrize("name", EACH)
def test_kept_slots_equal_the_cpus(path, name):
    """Every node runs on the GPU, and each head keeps the same slots as on the CPU, also with the
    first block on the CPU. For any split of the prompt and any other text in the batch, the answer
    has the same bits."""
    given, kept, answers = {"kv_policy": EACH[name]}, [], []
    ways = ({"device": "cpu"}, {}, {"batch": 7}, {"gpu_layers": 2})
    for _, engine in in_each_configuration(path, given, ways):
        answers.append(sampled(engine, PROMPT, GREEDY))
        slots = getattr(engine.model.method, "kept", {})
        kept.append({block: own.tolist() for block, own in slots.items()})
    assert kept.count(kept[0]) == len(ways)
    assert answers[1] == answers[2]
    theirs, ours = (np.frombuffer(b"".join(b for _, b in a), np.float32) for a in answers[:2])
    seen = np.isfinite(theirs)  # except for end-of-text tokens
    assert Gap.between(ours[seen][None], theirs[seen][None]).nmse <= NEAR


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "quest"])
def test_sessions_resume(path, tmp_path, name):
    """A session resumes as without an interruption."""
    with loaded(path, kv_policy=EACH[name]) as engine:
        engine.generate(PROMPT, GREEDY)
        save(engine, tmp_path / "held.session")
        held = engine.model.cells.next_position(0)
        expected = engine.model.evaluate([7], held).copy()
    with loaded(path, kv_policy=EACH[name]) as engine:
        restore(engine, tmp_path / "held.session")
        assert np.array_equal(engine.model.evaluate([7], held), expected)


def test_sparse_prefill_on_the_gpu(path):
    """Every node runs on the GPU, with the same bits for any split of a batch; with all cells seen
    they are those without a pattern."""
    prompt, found = PROMPT * 4, {}
    few = MInference(columns=5, diagonals=3, first=2, recent=2, observers=9, stretch=64)
    every = MInference(columns=200, diagonals=200, stretch=64)
    ways = {"without": (None, 64), "all": (every, 64), "few": (few, 64), "cut": (few, 90)}
    for way, (method, batch) in ways.items():
        with loaded(path, context=160, prompt_attention=method, batch=batch) as engine:
            assert {step.kernel.target for step in engine.model.steps} == {"cuda"}
            found[way] = sampled(engine, prompt, GREEDY)
    assert found["all"] == found["without"]
    assert found["few"] == found["cut"] != found["all"]


PAGED = {  # lengths of a prompt and an answer, some of whose tokens are packed into pages
    "kivi2": ({"context": 90, "kv_format": "KIVI2", "kv_residual": 4}, PROMPT * 2 + OTHER[:9]),
    "minicache": ({"context": 300, "kv_policy": MiniCache(recent=4)}, PROMPT * 9),
}


@pytest.mark.parametrize("name", ["kivi2", pytest.param("minicache", marks=pytest.mark.exhaustive)])
def test_packed_pages_on_the_gpu(path, tmp_path, name):
    """Every node runs on the GPU, with as many bytes held and the same answer as on the CPU, also
    with the first block on the CPU. For any split of the prompt, any other text in the batch, and
    after a session is restored the answer has the same bits."""
    given, prompt = PAGED[name]
    ways = ({"device": "cpu"}, {}, {"batch": 37}, {"gpu_layers": 3})
    answers, held = [], []
    for way, engine in in_each_configuration(path, given, ways):
        answers.append(sampled(engine, prompt, GREEDY))
        held.append(engine.timings.cache)
        assert engine.model.method.packed == {"kivi2": 2, "minicache": 1}[name]
        if not way:
            save(engine, tmp_path / "held.session")
            at = engine.model.cells.next_position(0)
            expected = engine.model.evaluate([7], at).copy()
    assert held.count(held[0]) >= len(ways) - 1
    assert answers[1] == answers[2]
    theirs, ours = (np.frombuffer(b"".join(b for _, b in a), np.float32) for a in answers[:2])
    seen = np.isfinite(theirs)
    assert Gap.between(ours[seen][None], theirs[seen][None]).nmse <= NEAR
    with loaded(path, **given) as engine:
        restore(engine, tmp_path / "held.session")
        assert np.array_equal(engine.model.evaluate([7], at), expected)
