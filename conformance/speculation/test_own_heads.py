"""Drafts by a model's own block that foretells a token: its logits are the formula's, the text is
the plain one, and a file without such a block is told so."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.llama.peers.compare import EXACT, LIMITS, demand_near
from conformance.support.models.small_families import SmallDeepSeek, SmallGlmMoe, prompt
from conformance.support.models.small_models import Small, tampered
from conformance.support.models.small_recurrent import SmallQwen3Next
from conformance.support.refusals import refusal
from conformance.support.speculation.speculating import demand_settled, pieces, unmarked
from engine import Engine, SamplingParams
from engine.cache.session import restore, save
from engine.config import ModelError
from engine.speculation.own_heads import OwnHeads
from engine.speculation.settings import OwnHead
from reference.further import joined
from reference.models.transformer import Weight

# The last block of each foretells; three stand before it.
MODELS: dict[str, Small] = {
    "DeepSeek V3": SmallDeepSeek(blocks=4, groups=3, kept=2, tied=True),
    "GLM 4.5": SmallGlmMoe(blocks=4, format="F16", seed=1),
    "Qwen 3 Next": SmallQwen3Next(blocks=4),
    "Qwen 3.5": SmallQwen3Next(architecture="qwen35", experts=0, blocks=4, seed=1),
}
LAST = "blk.3."
GREEDY = {"max_tokens": 20, "ignore_eos": True}
SEEDED = {**GREEDY, "temperature": 0.9, "seed": 7, "repetition_penalty": 1.2}
SETTINGS = OwnHead(draft_p_min=0.0, adaptive=False)


def with_head(small: Small, own: bool = False, knows: bool = False) -> Small:
    """The model with what joins an embedding and h, an embedding and a head of its own if `own`; or
    with a block that `knows`: no block adds anything, so that a token alone says the next."""
    width = small.hidden

    def made(weights, norms):
        rng = np.random.default_rng(9)

        def matrix(*dims: int) -> Weight:
            values = rng.standard_normal(dims, np.float32) * np.float32(dims[-1] ** -0.5)
            return Weight(values.view(np.uint8), "F32")

        more = {f"{LAST}nextn.eh_proj.weight": matrix(width, 2 * width)}
        for name in ("enorm", "hnorm", *(["shared_head_norm"] if own else [])):
            norms[f"{LAST}nextn.{name}.weight"] = 1 + 0.1 * rng.standard_normal(width, np.float32)
        for name in ("embed_tokens", "shared_head_head") if own else ():
            more[f"{LAST}nextn.{name}.weight"] = matrix(small.vocab, width)
        if knows:
            eye = np.concatenate([np.eye(width), np.zeros((width, width))], axis=1)
            more = {f"{LAST}nextn.eh_proj.weight": Weight(eye.astype("<f4").view(np.uint8), "F32")}
            norms[f"{LAST}nextn.enorm.weight"] = np.ones(width, np.float32)
            for name, weight in weights.items():
                if ".attn_output." in name or ".ffn_down" in name or ".ssm_out." in name:
                    weights[name] = Weight(np.zeros_like(weight.data), weight.format)
        return weights | more, norms

    return tampered(small, made)


def write(small: Small, path):
    return small.write(path, nextn_predict_layers=1)


@pytest.fixture(name="path", scope="module", params=MODELS)
def _path(request, tmp_path_factory):
    return write(with_head(MODELS[request.param]), tmp_path_factory.mktemp("own") / "small.gguf")


@pytest.mark.parametrize("own", [False, True], ids=["shared head", "own head"])
@pytest.mark.parametrize("small", MODELS.values(), ids=MODELS)
def test_logits_are_the_formulas(small, own, tmp_path):
    """Behind texts of several lengths, read in chunks of 8 or gone on with."""
    whole, tokens = with_head(small, own), prompt(small)
    with Engine.load(
        write(whole, tmp_path / "small.gguf"), threads=2, kv_format="F32", foretells=True, batch=8
    ) as engine:
        h = engine.embed(tokens, "none", normalize=False)
        engine.reset()
        drafter, found, model = OwnHeads(engine.model, 0.0), [], engine.model
        for begin, end in ((0, 11), (11, 12), (12, len(tokens))):
            model.evaluate(tokens[begin:end], begin)
            text = [*tokens[:end], 5]
            found.append(drafter._logits_behind(text))
            model.cells.remove(0, begin=end)
    weights, norms = whole.tensors()
    block = {n.replace(LAST, "blk.0."): w for n, w in weights.items() if n.startswith(LAST)}
    vectors = {n.replace(LAST, "blk.0."): v for n, v in norms.items() if n.startswith(LAST)}
    for name, theirs in (("token_embd", "embed_tokens"), ("output", "shared_head_head")):
        chosen = weights.get(f"{LAST}nextn.{theirs}.weight") or weights.get(f"{name}.weight")
        block |= {f"{name}.weight": chosen} if chosen else {}
    head = norms.get(f"{LAST}nextn.shared_head_norm.weight")
    vectors["output_norm.weight"] = norms["output_norm.weight"] if head is None else head
    block.setdefault("output.weight", block["token_embd.weight"])
    changes = {"leading": 0} if hasattr(small, "leading") else {}
    one = replace(small, blocks=1, **changes)
    for end, ours in zip((11, 12, len(tokens)), found, strict=True):
        following = np.array([*tokens[1:end], 5], np.int32)
        x = joined(h[:end], following, block, vectors, 1e-5)
        rows = block | {"token_embd.weight": Weight(x.astype("<f4").view(np.uint8), "F32")}
        theirs = one.formula()(np.arange(end, dtype=np.int32), rows, vectors, one.shape())
        demand_near(ours[None], theirs[-1:].astype(np.float32), EXACT)


@pytest.mark.parametrize("small", MODELS.values(), ids=MODELS)
def test_llama_cpp_agrees(llama_cpp, small, tmp_path):
    """llama.cpp opens the same file, and its own graph of such blocks foretells the same."""
    tokens, path = prompt(small), write(with_head(small, own=True), tmp_path / "small.gguf")
    with Engine.load(path, threads=1, kv_format="F32", foretells=True) as engine:
        h = engine.embed(tokens, "none", normalize=False)
        engine.reset()
        engine.model.evaluate(tokens, 0)
        ours = OwnHeads(engine.model, 0.0)._logits_behind([*tokens, 5])
    theirs = llama_cpp.foretold(path, h, [*tokens[1:], 5])
    demand_near(ours[None], theirs[None], LIMITS["llama.cpp"][small.format])


@pytest.mark.parametrize("threads", [1, 2])
def test_text_is_the_plain_one(path, threads):
    """Greedy and seeded, the second time too; in a context that is shifted, and saved and restored
    in the middle of the text."""
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


def test_what_is_foretold_rightly_is_taken(tmp_path):
    """Where a token alone says the next, and the block knows it, every draft is taken whole."""
    small = with_head(MODELS["GLM 4.5"], knows=True)
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


def test_who_cannot_draft_says_so(tmp_path):
    """A file without such a block, one without a part of it, and a model that is not the CPU's."""
    small = MODELS["GLM 4.5"]
    plain = small.write(tmp_path / "plain.gguf")
    line = refusal(ModelError, plain, Engine.load, plain, speculation=SETTINGS)
    assert line == "it has no block that foretells further tokens, so none can draft them"
    part = write(small, tmp_path / "part.gguf")
    line = refusal(ModelError, part, Engine.load, part, speculation=SETTINGS)
    assert line == f"tensor {LAST}nextn.eh_proj.weight is missing, without which none drafts"
    for options in ({"ram_budget": "1GiB"}, {"device": "cuda"}):
        with pytest.raises(ModelError, match=f"mtp and {next(iter(options))} exclude each other"):
            Engine.load(part, speculation=SETTINGS, **options)
