"""The model families: logits against formulas, bit identity, and files that are refused."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.llama.peers.compare import EXACT, PROMISE, Gap, demand_near, engine_logits, nmse
from conformance.support.bit_laws import (  # noqa: F401 - laws, of this file's subject
    ROOM,
    subject_of,
    test_batched_or_alone,
    test_chunks,
    test_threads,
    test_tree_of_tokens,
)
from conformance.support.budgets import bits, budgeted, wanted
from conformance.support.models.small_families import (
    QUANTISED,
    SUBJECTS,
    SmallCommandR,
    SmallDeepSeek,
    SmallFalcon,
    SmallGemma,
    SmallGemma4,
    SmallGLM,
    SmallGlmMoe,
    SmallGPT2,
    SmallGptOss,
    SmallMiniCPM,
    SmallMixture,
    SmallNeoX,
    SmallOLMo,
    SmallOPT,
    SmallPhi,
    SmallQwen,
    Subject,
    each_subject,
    exact,
    joined_experts,
    linear_of_either,
    prompt,
)
from conformance.support.models.small_models import tampered
from conformance.support.models.steps import loaded, rows
from conformance.support.refusals import refusal
from data import random_model
from engine import Engine
from engine.cache.session import SessionError, restore, save
from engine.config import ModelError
from engine.gguf.file import GGUFFile
from engine.metadata.config import config_of
from engine.model import Model
from engine.passes.observe import observe, observed
from engine.quantise import Recipe, quantise
from engine.sampling.params import SamplingParams
from reference.activations import gelu, gelu_erf, relu
from reference.formats import FORMATS
from reference.gated_activations import reglu
from reference.linear import linear
from reference.models.transformer import Weight
from reference.op import Array
from reference.quantise_activations import dequantise_activations, quantise_activations


@each_subject
def test_logits_are_the_formulas(small, tmp_path):
    """Float weights give the formula's logits within float32's rounding."""
    tokens = prompt(small)
    ours = engine_logits(small.write(tmp_path / "small.gguf"), tokens)
    demand_near(ours, exact(small, tokens), EXACT)


@pytest.mark.parametrize(
    "small",
    [*(s for each in QUANTISED.values() for s in each), SmallGptOss(format="MXFP4", seed=1)],
    ids=str,
)
def test_quantised_weights(small, tmp_path):
    """Activations are quantised to int8 as in the formula, except ties and those for a router in
    F32."""
    tokens = prompt(small)
    ours = engine_logits(small.write(tmp_path / "small.gguf"), tokens)
    theirs = exact(small, tokens, linear=linear_of_either).astype(np.float32)
    demand_near(ours, theirs, PROMISE * small.blocks)


def test_what_quantised_mixtures_differ_by(tmp_path):
    """If a mixture's logits differ from the formula's in more than the last digits, no token has
    another expert: an activation lies so near to the midpoint of two int8 codes that float32
    rounding decides. With the other code the formula gives the engine's logits."""
    small = SmallMixture(architecture="qwen2moe", width=64, shared=64, format="Q8_0", seed=7)
    tokens = prompt(small)
    ours = engine_logits(small.write(tmp_path / "small.gguf"), tokens)

    def otherwise(x, weight, format):
        if format == "F32":
            return linear(x, weight, format)
        q, scale, _ = quantise_activations(x)
        codes = x / np.repeat(scale, 32, axis=-1)
        near = np.abs(np.abs(codes) % 1 - 0.5) < 127 * 2.0**-24  # what float32 leaves of codes
        other = np.floor(codes) + np.ceil(codes) - q
        return linear(dequantise_activations(np.where(near, other, q), scale), weight, format)

    assert nmse(ours, exact(small, tokens, linear=linear_of_either)) > 1e-9
    assert nmse(ours, exact(small, tokens, linear=otherwise)) < 1e-12


@pytest.mark.parametrize(
    ("small", "name", "activation"),
    [
        (SmallFalcon(), "gelu", gelu_erf),
        (SmallFalcon(), "gelu_pytorch_tanh", gelu),
        (SmallFalcon(), "relu", relu),
        (SmallOPT(), "gelu", gelu_erf),
        (SmallQwen(), "relu", reglu),
        (SmallNeoX(), "gelu_pytorch_tanh", gelu),
        (SmallNeoX(architecture="phi2"), "gelu", gelu_erf),
        (SmallGPT2(), "gelu", gelu_erf),
    ],
    ids=lambda it: getattr(it, "architecture", None),
)
def test_the_file_names_its_activation(small, name, activation, tmp_path):
    """By the key hidden_activation."""
    tokens = prompt(small)
    path = small.write(tmp_path / "small.gguf", hidden_activation=name)
    theirs = exact(small, tokens, activation=activation).astype(np.float32)
    demand_near(engine_logits(path, tokens), theirs, EXACT)


def test_granite_without_rope(tmp_path):
    """The key rope.scaling.finetuned switches RoPE off."""
    small, tokens = SUBJECTS["Granite"], prompt(SUBJECTS["Granite"])
    path = small.write(tmp_path / "small.gguf", rope__scaling__finetuned=False)
    shape = replace(small.shape(), no_rope=1)
    theirs = small.formula()(np.array(tokens, np.int32), *small.tensors(), shape)
    demand_near(engine_logits(path, tokens), theirs.astype(np.float32), EXACT)


def test_long_rope_is_that_of_the_context(tmp_path):
    """A context beyond the model's original one uses the long divisors; the key attn_factor is the
    magnitude of both."""
    small = SmallPhi(long=True)
    tokens = np.array(prompt(small), np.int32)
    path = small.write(tmp_path / "small.gguf", rope__scaling__attn_factor=1.25)
    for context, kind in ((64, "short"), (65, "long")):
        with Engine.load(path, threads=1, kv_format="F32", context=context) as engine:
            ours = engine.logits(tokens.tolist())
        shape = replace(small.shape_of(kind), magnitude=1.25)
        theirs = small.formula()(tokens, *small.tensors(), shape)
        demand_near(ours, theirs.astype(np.float32), EXACT)


def test_sessions_keep_to_their_long_rope(tmp_path):
    """Keys rotated for a short context cannot be used in a long one."""
    path, session = SmallPhi(long=True).write(tmp_path / "small.gguf"), tmp_path / "session"
    with Engine.load(path, threads=1, context=64) as engine:
        for _ in engine.stream("3", SamplingParams(max_tokens=3)):
            pass
        save(engine, session)
        restore(engine, session)
    with Engine.load(path, threads=1, context=65) as engine:
        line = refusal(SessionError, session, restore, engine, session)
    assert line == "its keys are rotated for another context length"


# The same bits


DEEPSEEK = SmallDeepSeek(q_rank=64, nope=32, turned=32, value=32, format="Q4_0", finer="Q8_0")
MIXTURE = SmallMixture(format="Q8_0", width=32, seed=8)
MINICPM = SmallMiniCPM(q_rank=64, kv_rank=64, format="Q4_0", finer="Q8_0")
BITS = {"Falcon": SUBJECTS["Falcon, groups and two norms"], "OPT": SUBJECTS["OPT"],
        "Qwen 2": SUBJECTS["Qwen 2"], "Qwen 3": SUBJECTS["Qwen 3, wide heads"],
        "GPT-NeoX": SUBJECTS["GPT-NeoX"], "Phi 2": SUBJECTS["Phi 2, fused"],
        "StarCoder 2": SUBJECTS["StarCoder 2"], "StableLM": SUBJECTS["StableLM"],
        "StableLM, norms of heads": SUBJECTS["StableLM, norms of heads"],
        "Nemotron": SUBJECTS["Nemotron"],
        "Command R+": SUBJECTS["Command R+"],
        "GPT-2": SUBJECTS["GPT-2"], "BLOOM": SUBJECTS["BLOOM"],
        "MPT": SUBJECTS["MPT, steeper, biases"],
        "SmolLM 3": SUBJECTS["SmolLM 3"], "Granite": SUBJECTS["Granite"],
        "Ministral 3": SUBJECTS["Ministral 3"], "Arcee": SUBJECTS["Arcee"],
        "Hunyuan": SUBJECTS["Hunyuan"],
        "OLMo 2": SUBJECTS["OLMo 2"], "ERNIE 4.5": SUBJECTS["ERNIE 4.5"],
        "EXAONE 4": SUBJECTS["EXAONE 4, windows"], "Seed-OSS": SUBJECTS["Seed-OSS"],
        "GLM 4": SUBJECTS["GLM 4"], "GLM 4, Q4_0": SmallGLM(format="Q4_0"),
        "Phi 3": SUBJECTS["Phi 3"], "Command R": SUBJECTS["Command R"],
        "Command R7B": SUBJECTS["Command R7B"],
        "Falcon, Q4_0": QUANTISED["Q4_0"][0], "OPT, Q8_0": QUANTISED["Q8_0"][1],
        "Qwen 3, Q4_0": QUANTISED["Q4_0"][2], "Gemma": SUBJECTS["Gemma, wide heads"],
        "Gemma, Q4_0": QUANTISED["Q4_0"][3], "Gemma 2": SUBJECTS["Gemma 2"],
        "Gemma 3": SUBJECTS["Gemma 3"], "Gemma 4": SUBJECTS["Gemma 4"],
        "Gemma 4, Q4_0": SmallGemma4(format="Q4_0", window_dim=24),
        "Gemma 4, experts": SUBJECTS["Gemma 4, experts, keys of others, F16"],
        "Mixtral": SUBJECTS["Mixtral"],
        "Qwen 2, experts": SUBJECTS["Qwen 2, experts"],
        "Qwen 3, experts": SUBJECTS["Qwen 3, experts"],
        "Qwen 3, experts, Q4_0": QUANTISED["Q4_0"][6], "DeepSeek-V2": SUBJECTS["DeepSeek-V2"],
        "DeepSeek-V2, Q4_0": DEEPSEEK, "DeepSeek V3": SUBJECTS["DeepSeek V3"],
        "MiniCPM 3": SUBJECTS["MiniCPM 3"], "MiniCPM 3, Q4_0": MINICPM,
        "GLM 4.5, experts": SUBJECTS["GLM 4.5, experts"],
        "gpt-oss": SUBJECTS["gpt-oss"]}  # fmt: skip


@pytest.fixture(scope="module", params=BITS)
def subject(request, tmp_path_factory):
    path = BITS[request.param].write(tmp_path_factory.mktemp("bits") / "small.gguf")
    found = subject_of(path, ROOM)
    yield found
    found.model.close()


# Use


MIXTURES = ("Mixtral", "Qwen 2, experts", "Qwen 3, experts in every other block", "DeepSeek V3",
            "GLM 4.5, experts", "Granite, experts", "gpt-oss", "Gemma 4, experts")  # fmt: skip
STREAMED = (SmallGemma4(format="Q4_0", window_dim=24), *(SUBJECTS[name] for name in MIXTURES))


@pytest.mark.parametrize("small", STREAMED, ids=str)
def test_every_budget_gives_the_bits_of_no_budget(small, tmp_path):
    """Per-layer embeddings stay on disk, and so do experts that no router has chosen; bits are the
    same."""
    path = small.write(tmp_path / "small.gguf")
    with budgeted(path, 0) as model:
        plain = bits(model)
    for budget in wanted(path).budgets(2):
        with budgeted(path, budget) as model:
            assert bits(model) == plain


@pytest.mark.parametrize("small", [SmallGemma4(blocks=3, shared=0, experts=5), MIXTURE], ids=str)
def test_gates_and_ups_of_experts_may_be_one_tensor(small, tmp_path):
    """Bits are those of two tensors, in memory and under every budget; its activations are observed
    under its name."""
    with budgeted(small.write(tmp_path / "two.gguf"), 0) as model:
        plain = bits(model)
    path = joined_experts(small).write(tmp_path / "one.gguf")
    for budget in (0, *wanted(path).budgets(2)):
        with budgeted(path, budget) as model:
            assert bits(model) == plain
    with loaded(path, passes=(observe,)) as model:
        rows(model, [3, 4, 5])
        found = observed(model)["blk.1.ffn_gate_up_exps.weight"]
        assert found.counts.sum() == 3 * small.used


def test_a_gemma_4_that_says_nothing_of_a_cap_has_llama_cpps(tmp_path):
    with GGUFFile(SmallGemma4().write(tmp_path / "small.gguf")) as file:
        metadata = dict(file.metadata)
    del metadata["gemma4.final_logit_softcapping"]
    assert config_of(metadata, 70).logit_cap == 30


def test_positions_end_where_their_table_does(tmp_path):
    """A context of more cells than the model has positions is for several sequences; the position
    after the last is refused, and the model continues."""
    small = SmallOPT(context=6)
    with loaded(small.write(tmp_path / "small.gguf"), context=20) as model:
        assert model.config.context == 6
        model.step([3] * 6, range(6), [(0,)] * 6)
        model.step([3] * 6, range(6), [(1,)] * 6)
        with pytest.raises(ModelError, match="position 6 is beyond the model's 6 learned"):
            model.step([3], [6], [(0,)])


def test_squares_are_of_the_files_tensors(tmp_path):
    """The activations of attn_qkv are observed under its own name, though three products read
    it."""
    path = SmallFalcon(two_norms=True).write(tmp_path / "small.gguf")
    with loaded(path, passes=(observe,)) as model:
        rows(model, [3, 4, 5])
        found = {name: met.sums for name, met in observed(model).items()}
    assert set(found) == {
        f"blk.{i}.{name}.weight"
        for i in range(2)
        for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
    }
    assert all((sums > 0).all() for sums in found.values())
    assert not np.array_equal(found["blk.0.attn_qkv.weight"], found["blk.0.ffn_up.weight"])


@pytest.mark.parametrize(
    "small",
    [
        SmallFalcon(),
        SmallOPT(),
        SmallQwen(),
        SmallGemma(),
        SmallNeoX(),
        SmallGPT2(),
        SmallGLM(),
        SmallPhi(),
        SmallMiniCPM(q_rank=64),
    ],
    ids=lambda small: small.architecture,
)
def test_quantised_files_run(small, tmp_path):
    """Matrices become Q8_0, learned positions stay; the logits change by the quantisation error."""
    path, out, tokens = small.write(tmp_path / "small.gguf"), tmp_path / "q.gguf", prompt(small)
    with GGUFFile(path) as file:
        quantise(file, out, Recipe("Q8_0"), threads=1)
    with GGUFFile(out) as file:
        kinds = {name: info.type_name for name, info in file.tensors.items()}
    assert {kinds.pop("position_embd.weight", "F32")} == {"F32"}
    assert {kind for name, kind in kinds.items() if file.tensors[name].dims[1:]} == {"Q8_0"}
    gap = Gap.between(engine_logits(out, tokens), exact(small, tokens).astype(np.float32))
    assert 0 < gap.nmse < 2e-3


@pytest.mark.parametrize(
    ("more", "windowed"),
    [
        ({}, {0, 1, 2, 3, 4, 6}),
        ({"attention.sliding_window_pattern": 3}, {0, 1, 3, 4, 6}),
        ({"attention.sliding_window_pattern": 0}, set(range(7))),
        ({"attention.sliding_window_pattern": 1}, set()),
        ({"attention.sliding_window_pattern": [False, True] + 5 * [False]}, {1}),
        ({"attention.sliding_window": 0}, set()),
    ],
)
def test_which_blocks_have_a_window(more, windowed):
    """By the family, by an interval, or by a list."""
    config = config_of(metadata_of("gemma3", 7) | gemma3(more), 70)
    assert (config.windowed, config.window) == (windowed, 32 if windowed else 0)


def test_a_pattern_of_other_blocks_is_refused():
    """And so is an absurd number of blocks, before each one's window is looked up."""
    with pytest.raises(ModelError, match="block_count is 2147483647: at most"):
        config_of(metadata_of("gemma3", 2**31 - 1), 70)
    more = gemma3({"attention.sliding_window_pattern": [True]})
    with pytest.raises(ModelError, match="sliding_window_pattern has 1 values for 7 blocks"):
        config_of(metadata_of("gemma3", 7) | more, 70)


@pytest.mark.parametrize(
    ("family", "blocks", "by"),
    [("gemma2", 42, 24), ("gemma2", 46, 16), ("gemma3", 46, 24), ("gemma3", 62, 16)],
)
def test_scores_of_the_27b(family, blocks, by):
    """They are scaled by hidden / heads, as in llama.cpp."""
    assert config_of(metadata_of(family, blocks), 70).score_scale == by**-0.5


def metadata_of(family, blocks):
    plain = {"context_length": 128, "embedding_length": 64, "block_count": blocks,
             "feed_forward_length": 96, "attention.head_count": 4, "attention.key_length": 24,
             "attention.value_length": 24, "attention.layer_norm_rms_epsilon": 1e-5,
             "attention.sliding_window": 32}  # fmt: skip
    named = {f"{family}.{key}": value for key, value in plain.items()}
    return named | {"general.architecture": family}


def gemma3(keys):
    return {f"gemma3.{key}": value for key, value in keys.items()}


# What is refused


FALCON, OPT = SmallFalcon(blocks=1, two_norms=True), SmallOPT(blocks=1)
QWEN2, QWEN3 = SmallQwen(blocks=1, architecture="qwen2"), SmallQwen(blocks=1)
HUNYUAN = SmallQwen(blocks=1, architecture="hunyuan-dense")
NEOX, PHI2 = SmallNeoX(blocks=1), SmallNeoX(blocks=1, architecture="phi2")
GPT2, BLOOM = SmallGPT2(blocks=1, context=41), SmallGPT2(blocks=1, architecture="bloom")
MPT = SmallGPT2(blocks=1, architecture="mpt")
STABLELM = SmallNeoX(blocks=1, architecture="stablelm", parallel=False)
NEMOTRON = SmallNeoX(blocks=1, architecture="nemotron", parallel=False)
HEADS_NORMED = SmallNeoX(blocks=1, architecture="stablelm", head_norms=True)
PLUS = SmallCommandR(blocks=1, head_norms=True)
OLMO, GLM, PHI = SmallOLMo(blocks=1), SmallGLM(blocks=1), SmallPhi(blocks=1, long=True)
EXAONE = SmallOLMo(blocks=1, architecture="exaone4")
GEMMA, GEMMA2 = SmallGemma(blocks=1), SmallGemma(blocks=3, architecture="gemma2")
COHERE2 = SmallCommandR(blocks=1, architecture="cohere2")
GEMMA4 = SmallGemma4()
GEMMA3 = SmallGemma(blocks=1, architecture="gemma3")
NARROW = Weight(np.zeros((96, 256), np.uint8), "F32")  # [96, 64]: keys and values forgotten
SHORT = Weight(np.zeros((40, 256), np.uint8), "F32")
REFUSED: list[tuple[Subject, str, Weight | Array | None, str]] = [
    (FALCON, "blk.0.attn_norm.bias", None, "is missing"),
    (FALCON, "blk.0.attn_norm_2.bias", None, "is missing"),
    (FALCON, "blk.0.attn_qkv.weight", NARROW, "is [96, 64], not [128, 64]"),
    (FALCON, "blk.0.attn_qkv.weight", None, "is missing"),
    (OPT, "blk.0.attn_v.bias", None, "is missing"),
    (OPT, "position_embd.weight", None, "is missing"),
    (OPT, "position_embd.weight", SHORT, "is [40, 64], not [42, 64]"),
    (QWEN2, "blk.0.attn_v.bias", None, "is missing"),
    (QWEN3, "blk.0.attn_q_norm.weight", None, "is missing"),
    (HUNYUAN, "blk.0.attn_q_norm.weight", None, "is missing"),
    (
        SmallMixture(architecture="minimax-m2"),
        "blk.0.attn_k_norm.weight",
        np.ones(16, np.float32),
        "is [16], not [32]",
    ),
    (QWEN3, "blk.0.attn_k_norm.weight", np.ones(32, np.float32), "is [32], not [16]"),
    (NEOX, "blk.0.attn_qkv.bias", None, "is missing"),
    (NEOX, "blk.0.attn_qkv.bias", np.ones(64, np.float32), "is [64], not [192]"),
    (NEOX, "blk.0.ffn_norm.weight", None, "is missing"),
    (PHI2, "output.bias", None, "is missing"),
    (PHI2, "blk.0.attn_k.bias", None, "is missing"),
    (STABLELM, "blk.0.ffn_norm.weight", None, "is missing"),
    (NEMOTRON, "blk.0.attn_norm.bias", None, "is missing"),
    (NEMOTRON, "blk.0.ffn_up.bias", np.ones(64, np.float32), "is [64], not [96]"),
    (HEADS_NORMED, "blk.0.attn_q_norm.weight", np.ones(16, np.float32), "is [16], not [4, 16]"),
    (PLUS, "blk.0.attn_k_norm.weight", np.ones((4, 16), np.float32), "is [4, 16], not [2, 16]"),
    (SmallDeepSeek(), "blk.0.attn_k_b.weight", NARROW, "is [96, 64], not [4, 32, 12]"),
    (SmallDeepSeek(), "blk.1.ffn_gate_exps.weight", None, "is missing"),
    (SmallMiniCPM(), "blk.0.attn_kv_b.weight", NARROW, "is [96, 64], not [112, 32]"),
    (SmallMiniCPM(), "blk.0.attn_q_a_norm.weight", None, "is missing"),
    (SmallMiniCPM(long=True), "rope_factors_long.weight", None, "is missing"),
    (SmallGlmMoe(), "blk.0.ffn_gate.weight", None, "is missing"),
    (SmallGlmMoe(), "blk.1.post_attention_norm.weight", None, "is missing"),
    (SmallGlmMoe(), "blk.1.exp_probs_b.bias", np.ones(5, np.float32), "is [5], not [6]"),
    (GPT2, "position_embd.weight", SHORT, "is [40, 64], not [41, 64]"),
    (GPT2, "blk.0.attn_norm.bias", None, "is missing"),
    (BLOOM, "token_embd_norm.weight", None, "is missing"),
    (MPT, "blk.0.attn_qkv.bias", np.ones(64, np.float32), "is [64], not [192]"),
    (PHI, "blk.0.attn_qkv.weight", NARROW, "is [96, 64], not [128, 64]"),
    (PHI, "rope_factors_short.weight", None, "is missing"),
    (PHI, "rope_factors_long.weight", np.ones(16, np.float32), "is [16], not [7]"),
    (SmallCommandR(blocks=1), "blk.0.attn_norm.weight", None, "is missing"),
    (GLM, "blk.0.ffn_up.weight", NARROW, "is [96, 64], not [192, 64]"),
    (GLM, "blk.0.ffn_norm.weight", None, "is missing"),
    (OLMO, "blk.0.post_ffw_norm.weight", None, "is missing"),
    (OLMO, "blk.0.attn_k_norm.weight", np.ones(16, np.float32), "is [16], not [32]"),
    (EXAONE, "blk.0.attn_k_norm.weight", np.ones(32, np.float32), "is [32], not [16]"),
    (SmallQwen(architecture="seed_oss"), "blk.0.post_attention_norm.weight", None, "is missing"),
    (GEMMA, "blk.0.ffn_gate.weight", None, "is missing"),
    (GEMMA2, "blk.0.post_ffw_norm.weight", None, "is missing"),
    (GEMMA3, "blk.0.attn_q_norm.weight", None, "is missing"),
    (GEMMA4, "blk.2.attn_k.weight", NARROW, "is [96, 64], not [24, 64]"),
    (GEMMA4, "blk.5.post_norm.weight", None, "is missing"),
    (GEMMA4, "blk.5.ffn_up.weight", NARROW, "is [96, 64], not [192, 64]"),
    (GEMMA4, "per_layer_token_embd.weight", NARROW, "is [96, 64], not [70, 192]"),
    (
        SmallGemma4(per_layer=16),
        "per_layer_token_embd.weight",
        Weight(np.zeros((70, 102), np.uint8), "Q8_0"),
        "is in Q8_0: rows of 16 elements are not whole blocks",
    ),
]


@pytest.mark.parametrize(("small", "name", "other", "words"), REFUSED)
def test_tensors_that_are_refused(small, name, other, words, tmp_path):
    """One plain line names the tensor that is missing, or too small."""
    path = tampered(small, {name: other}).write(tmp_path / "bad.gguf")
    assert refusal(ModelError, path, Model, path).startswith(f"tensor {name} {words}")


@pytest.mark.parametrize(
    ("small", "keys", "line"),
    [
        (FALCON, {"hidden_activation": "silu"}, "falcon.hidden_activation is 'silu': want gelu, "),
        (QWEN3, {"hidden_activation": "gelu"}, "qwen3.hidden_activation is 'gelu': want silu, "),
        (GEMMA, {"hidden_activation": "silu"}, "gemma.hidden_activation is 'silu': want gelu_py"),
        (GEMMA2, {"attention__scale": -1.0}, "gemma2.attention.scale must be at least 0, got -1.0"),
        (
            GEMMA3,
            {"rope__freq_base_swa": -1.0},
            "gemma3.rope.freq_base_swa must be at least 0, got",
        ),
        (replace(OPT, context=0), {}, "opt.context_length must be a count of at least 3, got 2"),
        (MPT, {"attention__clamp_kqv": 6.0}, "mpt.attention.clamp_kqv is 6.0, but mpt here has no"),
        (COHERE2, {"attention__sliding_window": 0}, "cohere2.attention.sliding_window must be a"),
        (
            SmallDeepSeek(turned=20),
            {"attention__key_length_mla": 20},
            "deepseek2.attention: a kv_lora_rank of 32, a key_length of 52 and a key_length_mla",
        ),
        (
            SmallDeepSeek(),
            {"attention__head_count_kv": 4},
            "deepseek2: MLA needs attention.head_count_kv = 1 and",
        ),
        (
            SmallDeepSeek(),
            {"attention__value_length": 40},
            "deepseek2.attention.value_length differs from kv_lora_rank",
        ),
        (
            SmallMiniCPM(),
            {"attention__head_count_kv": 2},
            "minicpm3.attention.head_count_kv is 2: all 4 heads have keys here",
        ),
        (
            SmallMiniCPM(),
            {"rope__scaling__attn_factor": 1.5},
            "minicpm3.rope.scaling.attn_factor is 1.5: latent attention here has none but 1",
        ),
        (
            SmallMiniCPM(),
            {"rope__dimension_count": 20},
            "minicpm3.attention: a kv_lora_rank of 32, a key_length of 20 and a dimension_count of",
        ),
        (
            SmallDeepSeek(),
            {"expert_group_count": 3},
            "deepseek2.expert_group_count is 3: groups of softmax scores, each of which goes by",
        ),
        (
            SmallGlmMoe(),
            {"expert_group_count": 4},
            "glm4moe.expert_group_count 4, of which 1 are used, does not divide 6 experts",
        ),
        (SmallGlmMoe(), {"expert_gating_func": 4}, "glm4moe.expert_gating_func is 4: want 1"),
        (GEMMA4, {"attention__shared_kv_layers": 4}, "gemma4.attention.shared_kv_layers is 4: bl"),
        (GEMMA4, {"attention__key_length_swa": 20}, "gemma4.attention.value_length_swa differs "),
        (GEMMA4, {"attention__head_count_kv": 3}, "attention.head_count 4 is no multiple of head"),
        (GEMMA3, {"expert_count": 4}, "gemma3.expert_count: mixtures of experts are not support"),
        (SmallGptOss(), {"expert_count": 0}, "gpt-oss.expert_count is 0: swiglu_oai needs expert"),
        (BLOOM, {"attention__max_alibi_bias": -8.0}, "attention.max_alibi_bias must be at least"),
    ],
)
def test_keys_that_are_refused(small, keys, line, tmp_path):
    path = small.write(tmp_path / "bad.gguf", **keys)
    assert refusal(ModelError, path, Model, path).startswith(line)


SMALLER = {"block_count": 4, "embedding_length": 64, "feed_forward_length": 64,
           "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", random_model.OTHERS)
def test_random_models_of_real_shapes_run(name, tmp_path, monkeypatch):
    """The file has all tensors of the engine, at the real shape's heads, states and experts; all
    logits are finite, and differ between tokens."""
    whole = random_model.OTHERS[name]
    sizes = whole | {key: min(whole[key], SMALLER[key]) for key in SMALLER.keys() & whole.keys()}
    monkeypatch.setitem(random_model.OTHERS, name, sizes)
    vocabulary, form = random_model.made_up_vocabulary(300), FORMATS["Q8_0"]
    none = random_model.Predictors(32, 0.1)
    random_model.write(tmp_path / "m.gguf", name, vocabulary, form, none, 0, lambda *_: None)
    logits = engine_logits(tmp_path / "m.gguf", [1, 5, 9])
    assert np.isfinite(logits).all()
    assert len(np.unique(logits, axis=0)) == 3
