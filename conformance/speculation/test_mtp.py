"""Drafts by a model's own MTP blocks: their logits are the formula's, the text is the plain one,
and files without such a block are refused."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from conformance.cuda.emulator import compiler
from conformance.llama.peers.compare import EXACT, LIMITS, demand_near
from conformance.support.budgets import to_the_byte, wanted
from conformance.support.models.small_families import SmallDeepSeek, SmallGlmMoe, prompt
from conformance.support.models.small_models import Small, tampered
from conformance.support.models.small_recurrent import SmallQwen3Next
from conformance.support.refusals import refusal
from conformance.support.speculation.speculating import demand_settled, pieces, unmarked
from engine import Engine, SamplingParams
from engine.cache.session import restore, save
from engine.config import ModelError
from engine.gpu.hybrid import Hybrid
from engine.speculation.mtp_drafter import MTPDrafter
from engine.speculation.settings import MTP
from reference.models.transformer import Weight
from reference.mtp import mtp_input
from reference.op import Array

# Blocks after the first three of each are MTP blocks.
MODELS: dict[str, Small] = {
    "DeepSeek V3": SmallDeepSeek(blocks=4, groups=3, kept=2, tied=True),
    "GLM 4.5": SmallGlmMoe(blocks=4, format="F16", seed=1),
    "Qwen 3 Next": SmallQwen3Next(blocks=4),
    "Qwen 3.5": SmallQwen3Next(architecture="qwen35", experts=0, blocks=4, seed=1),
    "DeepSeek V3, three": SmallDeepSeek(blocks=6, groups=3, kept=2, tied=True, seed=1),
    "Qwen 3.5, two": SmallQwen3Next(architecture="qwen35", experts=0, blocks=5, mtp_blocks=2),
}
ALONE = [name for name, small in MODELS.items() if small.blocks == 4]
LAST = "blk.3."
AFTER = (5, 9, 2)  # tokens behind a text, of which the last are drafted
GREEDY = {"max_tokens": 20, "ignore_eos": True}
SEEDED = {**GREEDY, "temperature": 0.9, "seed": 7, "repetition_penalty": 1.2}
SETTINGS = MTP(draft_p_min=0.0, adaptive=False)


def with_head(small: Small, own: bool = False, knows: bool = False) -> Small:
    """The model with its projection of an embedding and h, and with an embedding and a head of its
    own if `own`; or with blocks that `know`: none adds anything, so that a token alone determines
    the next. DeepSeek's blocks each have their own, Qwen's share the first one's."""
    width, sharing = small.hidden, small.architecture == "qwen35"
    behind = [f"blk.{i}." for i in range(3, 4 if sharing else small.blocks)]

    def made(weights, norms):
        rng = np.random.default_rng(9)

        def matrix(*dims: int) -> Weight:
            values = rng.standard_normal(dims, np.float32) * np.float32(dims[-1] ** -0.5)
            return Weight(values.view(np.uint8), "F32")

        more = {}
        for block in behind:
            more |= {f"{block}nextn.eh_proj.weight": matrix(width, 2 * width)}
            for name in ("enorm", "hnorm", *(["shared_head_norm"] if own else [])):
                vector = 1 + 0.1 * rng.standard_normal(width, np.float32)
                norms[f"{block}nextn.{name}.weight"] = vector
            for name in ("embed_tokens", "shared_head_head") if own else ():
                more[f"{block}nextn.{name}.weight"] = matrix(small.vocab, width)
        if knows:
            eye = np.concatenate([np.eye(width), np.zeros((width, width))], axis=1)
            joins = Weight(eye.astype("<f4").view(np.uint8), "F32")
            more = {f"{block}nextn.eh_proj.weight": joins for block in behind}
            norms |= {f"{block}nextn.enorm.weight": np.ones(width, np.float32) for block in behind}
            for name, weight in weights.items():
                if ".attn_output." in name or ".ffn_down" in name or ".ssm_out." in name:
                    weights[name] = Weight(np.zeros_like(weight.data), weight.format)
        return weights | more, norms

    return tampered(small, made)


def write(small: Small, path):
    return small.write(path, nextn_predict_layers=small.blocks - 3)


def predicted(engine: Engine, tokens: list[int]) -> list[Array]:
    """Logits of each block in turn, after the first 11 tokens, then 12, then all."""
    drafter, found, model = MTPDrafter(engine.model, 0.0), [], engine.model
    drafts = range(len(model.mtp_blocks))
    for begin, end in ((0, 11), (11, 12), (12, len(tokens))):
        model.evaluate(tokens[begin:end], begin)
        text = [*tokens[:end], *AFTER[: len(drafts)]]
        drafter._invalidate(text)
        found += [drafter._logits_after(text[: end + 1 + n], n) for n in drafts]
        drafter._text = text
        model.cells.remove(0, begin=end)
    return found


@pytest.fixture(name="path", scope="module", params=MODELS)
def _path(request, tmp_path_factory):
    return write(with_head(MODELS[request.param]), tmp_path_factory.mktemp("own") / "small.gguf")


@pytest.mark.parametrize("own", [False, True], ids=["shared head", "own head"])
@pytest.mark.parametrize("small", MODELS.values(), ids=MODELS)
def test_logits_are_the_formulas(small, own, tmp_path):
    """Texts of several lengths are read in chunks of 8, or continued."""
    whole, tokens = with_head(small, own), prompt(small)
    with Engine.load(
        write(whole, tmp_path / "small.gguf"), threads=2, kv_format="F32", mtp=True, batch=8
    ) as engine:
        h = engine.embed(tokens, "none", normalize=False)
        engine.reset()
        found = predicted(engine, tokens)
    weights, norms = whole.tensors()
    changes = {"leading": 0} if hasattr(small, "leading") else {}
    one, ours = replace(small, blocks=1, **changes), iter(found)
    eye = Weight(np.eye(small.hidden, dtype="<f4").view(np.uint8), "F32")
    for end in (11, 12, len(tokens)):
        before = h[:end]
        for i in range(small.blocks - 3):
            block, vectors = _alone(weights, norms, i)
            following = np.array([*tokens[:end], *AFTER][1 + i : end + 1 + i], np.int32)
            x = mtp_input(before, following, block, vectors, 1e-5).astype("<f4")
            rows = block | {"token_embd.weight": Weight(x.view(np.uint8), "F32")}
            theirs, before = (
                one.formula()(np.arange(end, dtype=np.int32), r, vectors, one.shape())
                for r in (rows, rows | {"output.weight": eye})
            )
            demand_near(next(ours)[None], theirs[-1:].astype(np.float32), EXACT)


def _alone(weights, norms, number):
    """Tensors of that block after the third as those of a model with one; missing ones are the
    first block's, or the model's."""
    places = ("blk.3.", f"blk.{3 + number}.")

    def of(tensors):
        every = ((n, t) for place in places for n, t in tensors.items() if n.startswith(place))
        found = {f"blk.0.{n.split('.', 2)[2]}": tensor for n, tensor in every}
        own = (("token_embd", "embed_tokens"), ("output", "shared_head_head"),
               ("output_norm", "shared_head_norm"))  # fmt: skip
        for name, theirs in own:
            chosen = found.get(f"blk.0.nextn.{theirs}.weight", tensors.get(f"{name}.weight"))
            found |= {} if chosen is None else {f"{name}.weight": chosen}
        return found

    block = of(weights)
    return {"output.weight": block["token_embd.weight"], **block}, of(norms)


@pytest.mark.parametrize("name", ALONE)
def test_llama_cpp_agrees(llama_cpp, name, tmp_path):
    """llama.cpp opens the same file, and its own graph of such a block predicts the same; it does
    not support several blocks of these families."""
    small = MODELS[name]
    tokens, path = prompt(small), write(with_head(small, own=True), tmp_path / "small.gguf")
    with Engine.load(path, threads=1, kv_format="F32", mtp=True) as engine:
        h = engine.embed(tokens, "none", normalize=False)
        engine.reset()
        engine.model.evaluate(tokens, 0)
        drafter = MTPDrafter(engine.model, 0.0)
        drafter._invalidate([*tokens, 5])
        ours = drafter._logits_after([*tokens, 5], 0)
    theirs = llama_cpp.mtp_logits(path, h, [*tokens[1:], 5])
    demand_near(ours[None], theirs[None], LIMITS["llama.cpp"][small.format])


@pytest.mark.parametrize("threads", [1, 2])
def test_mtp_drafts_change_no_token(path, threads):
    """Greedy and seeded texts are plain, twice, with context shift, and saved and restored."""
    long = {**GREEDY, "max_tokens": 60}
    with Engine.load(path, threads=threads, context=40) as engine:
        shifts = engine.model.config.recurrent == frozenset()
        plain = [pieces(engine, [3, 4, 5], how) for how in (GREEDY, SEEDED)]
        longer = pieces(engine, [3, 4, 5], long, context_shift=True) if shifts else []
    with Engine.load(path, threads=threads, context=40, speculation=SETTINGS) as engine:
        for _ in range(2):
            for how, wanted in zip((GREEDY, SEEDED), plain, strict=True):
                assert unmarked(pieces(engine, [3, 4, 5], how)) == wanted
                demand_settled(engine)
                engine.reset()
        if shifts:
            assert unmarked(pieces(engine, [3, 4, 5], long, context_shift=True)) == longer
        engine.reset()
        begun = pieces(engine, [3, 4, 5], {**GREEDY, "max_tokens": 8})
        session = path.with_suffix(".session")
        save(engine, session)
        engine.reset()
        restore(engine, session)
        text = [3, 4, 5, *(piece.token for piece in begun)]
        rest = pieces(engine, text, {**GREEDY, "max_tokens": 12})
        assert [p.token for p in (*begun, *rest)] == [p.token for p in plain[0]]
        demand_settled(engine)


def test_mtp_within_a_ram_budget(path):
    """MTP weights stay in memory, and bits are those without a budget."""
    tokens = np.random.default_rng(3).integers(3, 64, 15).tolist()
    how = {"threads": 2, "context": 40, "batch": 8, "mtp": True}

    def found(budget: int) -> list[Array]:
        with to_the_byte(), Engine.load(path, ram_budget=budget, **how) as engine:
            return predicted(engine, tokens)

    plain = found(0)
    for budget in wanted(path, mtp=True).budgets(2):
        assert_array_equal(found(budget), plain)


@pytest.mark.skipif(not compiler(), reason="no C++ compiler for the emulator")
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("GLM 4.5", {}),
        ("GLM 4.5", {"cpu_moe": True}),
        ("Qwen 3.5, two", {"gpu_layers": 4}),
        ("Qwen 3.5, two", {"gpu_layers": 2}),
    ],
    ids=str,
)
def test_mtp_on_a_gpu(name, options, tmp_path):
    """They run on the output's device, without a second copy of weights; logits are the CPU's
    within rounding, and the text is the one without drafts. The GPU computes log-probabilities of
    tokens that it chose, the host those of drafts, both with a float32 exp."""
    small = with_head(MODELS[name])
    path, tokens = write(small, tmp_path / "small.gguf"), prompt(small)
    how = {"threads": 1, "context": 40, "kv_format": "F32", "batch": 8}
    with Engine.load(path, mtp=True, **how) as engine:
        theirs = predicted(engine, tokens)
    how |= {"device": "cuda", **options}
    with Engine.load(path, mtp=True, **how) as engine:
        demand_near(np.array(predicted(engine, tokens)), np.array(theirs), EXACT)
        ready, ahead = engine.model.executable, engine.model.mtp_blocks
        there = [isinstance(one, Hybrid) for one in ahead]
        assert there == [options.get("gpu_layers") != 2] * len(ahead)
        if all(there):
            plans = [one.device_plan for one in (ready, *ahead)]
            assert len({plan.weights["output.weight"].buffer.address for plan in plans}) == 1
    if options.get("gpu_layers") == 4:
        few = {**GREEDY, "max_tokens": 8}
        with Engine.load(path, **how) as engine:
            plain = pieces(engine, [3, 4, 5], few)
        with Engine.load(path, speculation=SETTINGS, **how) as engine:
            found = unmarked(pieces(engine, [3, 4, 5], few))
            ours, theirs = ([p.logprob for p in some] for some in (found, plain))
            assert_allclose(ours, theirs, rtol=0, atol=1e-6)
            assert [replace(p, logprob=0.0) for p in found] == [
                replace(p, logprob=0.0) for p in plain
            ]
            demand_settled(engine)


@pytest.mark.parametrize("blocks", [1, 2])
def test_right_predictions_are_accepted(blocks, tmp_path):
    """If the blocks know the next token, every draft is accepted whole."""
    small = with_head(replace(MODELS["GLM 4.5"], blocks=3 + blocks), knows=True)
    with Engine.load(
        write(small, tmp_path / "small.gguf"), threads=1, speculation=SETTINGS
    ) as engine:
        found = pieces(engine, [3, 4, 5], {**GREEDY, "max_tokens": 33})
        drafts = engine.timings.speculation
        assert drafts.acceptance == 1
        assert drafts.tokens_per_step > 3.5
        stopped = engine.stream([3, 4, 5, 6], SamplingParams(ignore_eos=True))
        next(stopped)
        engine.cancel()
        assert list(stopped)[-1].finish_reason == "cancelled"
        engine.reset()
        assert pieces(engine, [3, 4, 5], {**GREEDY, "max_tokens": 33}) == found


def test_unsupported_mtp_models_are_refused(tmp_path):
    """A file without such a block, one without a part of it, and a budget without room for it."""
    small = MODELS["GLM 4.5"]
    plain = small.write(tmp_path / "plain.gguf")
    line = refusal(ModelError, plain, Engine.load, plain, speculation=SETTINGS)
    assert line == "it has no multi-token-prediction block to draft with"
    part = write(small, tmp_path / "part.gguf")
    line = refusal(ModelError, part, Engine.load, part, speculation=SETTINGS)
    assert line == f"tensor {LAST}nextn.eh_proj.weight is missing: drafting needs it"
    many = small.write(tmp_path / "many.gguf", nextn_predict_layers=2**30, block_count=2**30 + 3)
    line = refusal(ModelError, many, Engine.load, many, speculation=SETTINGS)
    assert line.startswith("glm4moe.block_count is 1073741827, but there are")
    whole = write(with_head(small), tmp_path / "whole.gguf")
    with pytest.raises(ModelError, match="for the MTP blocks, "):
        Engine.load(whole, speculation=SETTINGS, ram_budget="1MiB")
