"""Checkpoints of the families: rows that move, constants, and what is refused."""

import json
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.llama.peers.checkpoint import CHECKPOINTS
from conformance.llama.peers.folder import write_folder, write_weights
from conformance.support.models.family_checkpoints import (
    FALCON,
    FFN,
    GPT2,
    GROUPS,
    HEADS,
    HIDDEN,
    NEOX,
    OPT,
    SIZE,
    falcon,
    gpt2,
    neox,
    opt,
    written,
)
from engine.convert import CheckpointError, convert
from engine.convert.fields import Fields
from engine.convert.rope_scaling import divisors
from engine.convert.table import family_of
from engine.gguf.file import GGUFFile


def test_falcon_qkv_is_ungrouped(tmp_path):
    """A group of Falcon's fused tensor is its queries, one key and one value; GGUF stores all
    queries, all keys, all values. The norm of attention is the second of the 40B, and the only one
    of the 7B."""
    out = tmp_path / "model.gguf"
    convert(written(tmp_path / "model", FALCON, falcon()), out, "F32")
    heads = np.arange((HEADS + 2 * GROUPS) * SIZE).reshape(GROUPS, HEADS // GROUPS + 2, SIZE)
    wanted = [heads[:, :-2].ravel(), heads[:, -2].ravel(), heads[:, -1].ravel()]
    with GGUFFile(out) as file:
        stored = file.tensor("blk.0.attn_qkv.weight").view(np.float32)
        assert_array_equal(stored[:, 0], np.concatenate(wanted))
        for name, value in (("attn_norm_2", 1), ("attn_norm", 2)):
            assert (file.tensor(f"blk.0.{name}.weight").view(np.float32) == value).all()
            assert (file.tensor(f"blk.0.{name}.bias").view(np.float32) == -value).all()
        assert "output.weight" not in file.tensors
        keys = {k.removeprefix("falcon."): v for k, v in file.metadata.items()}
    assert keys["attention.head_count_kv"] == GROUPS
    assert keys["tensor_data_layout"] == "jploski"
    assert "hidden_activation" not in keys


def test_gpt_neox_qkv_is_ungrouped(tmp_path):
    """GPT-NeoX stores a head's query, key and value together, in weights and biases; RoPE applies
    to a part of each head, with a base under another name."""
    out = tmp_path / "model.gguf"
    convert(written(tmp_path / "model", NEOX, neox()), out, "F32")
    wanted = np.arange(3 * HIDDEN).reshape(HEADS, 3, SIZE).swapaxes(0, 1).ravel()
    with GGUFFile(out) as file:
        stored = file.tensor("blk.0.attn_qkv.weight").view(np.float32)
        assert_array_equal(stored[:, 0], wanted)
        assert_array_equal(file.tensor("blk.0.attn_qkv.bias").view(np.float32), wanted)
        keys = {k.removeprefix("gptneox."): v for k, v in file.metadata.items()}
    assert (keys["rope.dimension_count"], keys["rope.freq_base"]) == (2, 5000)
    assert keys["use_parallel_residual"] is True


def test_gpt2_matrices_are_transposed(tmp_path):
    """GPT-2's checkpoint has inputs as rows; GGUF's rows are outputs."""
    out, weights = tmp_path / "model.gguf", gpt2()
    convert(written(tmp_path / "model", GPT2, weights), out, "F32")
    with GGUFFile(out) as file:
        for ours, theirs in (("attn_qkv", "attn.c_attn"), ("ffn_up", "mlp.c_fc"),
                             ("ffn_down", "mlp.c_proj")):  # fmt: skip
            stored = file.tensor(f"blk.0.{ours}.weight").view(np.float32)
            assert_array_equal(stored, weights[f"h.0.{theirs}.weight"].T)
        keys = {k.removeprefix("gpt2."): v for k, v in file.metadata.items()}
    assert (keys["context_length"], keys["feed_forward_length"]) == (30, 40)


def test_opt_is_converted_as_by_powerinfer(tmp_path):
    """Names are PowerInfer's; positions have two more rows, which the context counts."""
    out = tmp_path / "model.gguf"
    convert(written(tmp_path / "model", OPT, opt()), out, "F16")
    with GGUFFile(out) as file:
        assert file.metadata["opt.context_length"] == 32
        assert file.tensors["position_embd.weight"].dims == (32, HIDDEN)
        assert file.tensors["position_embd.weight"].type_name == "F16"
        block = {name for name in file.tensors if name.startswith("blk.0.")}
    parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_up",
             "ffn_down")  # fmt: skip
    assert block == {f"blk.0.{part}.{kind}" for part in parts for kind in ("weight", "bias")}


def test_qwen_rows_are_not_permuted(tmp_path):
    """RoPE rotates halves of a head in both formats, so no row moves; norms of heads are kept."""
    checkpoint, out = CHECKPOINTS["grouped_query"], tmp_path / "model.gguf"
    folder = write_folder(checkpoint, tmp_path / "model", architecture="Qwen3ForCausalLM")
    layers, weights = "model.layers.{}.self_attn.{}", checkpoint.weights()
    for i, n in product(range(2), "qk"):
        weights[layers.format(i, f"{n}_norm.weight")] = np.full(12, 2 * i + (n == "k"), np.float32)
    write_weights(folder, weights)
    convert(folder, out, "F32")
    with GGUFFile(out) as file:
        assert file.metadata["general.architecture"] == "qwen3"
        for i, n in product(range(2), "qk"):
            for ours, theirs in ((f"{n}", f"{n}_proj"), (f"{n}_norm", f"{n}_norm")):
                stored = file.tensor(f"blk.{i}.attn_{ours}.weight").view(np.float32)
                assert_array_equal(stored, weights[layers.format(i, f"{theirs}.weight")])


@pytest.mark.parametrize("factors", [None, [1.0], [1.0, 0.0], [1.0, "2"]])
def test_longrope_divisors_have_one_per_frequency(factors):
    """There are as many divisors as RoPE has frequencies."""
    rope = {"type": "su", "short_factor": [1.0, 2.0], "long_factor": factors}
    with pytest.raises(CheckpointError, match="long_factor must be 2 positive numbers"):
        divisors(Fields({"rope_scaling": rope}, "config.json"), 4)


def test_gemma_norms_are_stored_plus_one(tmp_path):
    """The checkpoint's norms lack the 1 that GGUF's have; the activation is GELU's tanh form."""
    checkpoint, out = CHECKPOINTS["grouped_query"], tmp_path / "model.gguf"
    fields = {"architecture": "GemmaForCausalLM", "hidden_act": "gelu"}
    folder = write_folder(checkpoint, tmp_path / "model", **fields)
    assert not convert(folder, out, "F32").notes
    weights = checkpoint.weights()
    with GGUFFile(out) as file:
        assert "gemma.hidden_activation" not in file.metadata
        for name, theirs, more in (
            ("blk.0.attn_norm", "model.layers.0.input_layernorm", 1),
            ("output_norm", "model.norm", 1),
            ("blk.1.attn_q", "model.layers.1.self_attn.q_proj", 0),
        ):
            stored = file.tensor(f"{name}.weight").view(np.float32)
            assert_array_equal(stored, weights[f"{theirs}.weight"] + np.float32(more))


def test_gemma3_rope_fields_of_both_versions():
    """transformers 4 has a field for each RoPE base, transformers 5 objects by layer type."""
    stretched = {"rope_type": "linear", "factor": 8.0}
    fields = asdict(CHECKPOINTS["grouped_query"]) | {"architectures": ["Gemma3ForCausalLM"]}
    del fields["rope_theta"], fields["rope_scaling"]
    four = {"rope_theta": 5e5, "rope_local_base_freq": 500.0, "rope_scaling": stretched}
    five = {"full_attention": stretched | {"rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}  # fmt: skip
    told = [fields | four, fields | {"rope_parameters": five}, fields]
    ropes = []
    for config in [Fields(one, "config.json") for one in told]:
        keys = family_of(config).keys(config)
        ropes.append({k: value for k, (_, value) in keys.items() if ".rope." in k})
    assert ropes[0] == ropes[1]
    assert ropes[0]["gemma3.rope.scaling.factor"] == 8
    for rope, bases in ((ropes[0], (5e5, 500.0)), (ropes[2], (1e6, 10000.0))):
        assert (rope["gemma3.rope.freq_base"], rope["gemma3.rope.freq_base_swa"]) == bases


def test_text_part_of_a_vision_model(tmp_path):
    """Its fields and tensors stand under names of their own, of which there are two kinds; what
    sees is left out, as a note says: the file is that of the text alone, bit for bit."""
    checkpoint, seen = (
        CHECKPOINTS["grouped_query"],
        {"vision_tower.x.weight": np.ones((2, 2), "f4")},
    )
    text = write_folder(checkpoint, tmp_path / "text", architecture="MistralForCausalLM")
    convert(text, tmp_path / "text.gguf", name="one")
    config = json.loads((text / "config.json").read_text()) | {"model_type": "mistral"}
    kind = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}
    told = {"text_config": config, "vision_config": {"image_size": 1540}}
    (text / "config.json").write_text(json.dumps(told | kind))
    for before, after in (("model.", "language_model.model."), ("model.", "model.language_model.")):
        weights = {n.replace(before, after, 1): w for n, w in checkpoint.weights().items()}
        if after.startswith("language"):
            weights["language_model.lm_head.weight"] = weights.pop("lm_head.weight")
        write_weights(text, weights | seen)
        [note] = convert(text, tmp_path / "seeing.gguf", name="one").notes
        assert note == "what sees images is left out: the file is of the text alone"
        assert (tmp_path / "seeing.gguf").read_bytes() == (tmp_path / "text.gguf").read_bytes()
    config["model_type"] = "mistral4"
    (text / "config.json").write_text(json.dumps(told | kind))
    with pytest.raises(CheckpointError, match="model_type is 'mistral4'; this family runs"):
        convert(text, tmp_path / "other.gguf")
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0, "llama_4_scaling_beta": 0.1}
    config |= {"model_type": "ministral3", "head_dim": 12, "rope_parameters": rope}
    (text / "config.json").write_text(json.dumps(told | kind))
    with pytest.raises(CheckpointError, match="original_max_position_embeddings is missing"):
        convert(text, tmp_path / "other.gguf")
    rope["original_max_position_embeddings"] = 16
    (text / "config.json").write_text(json.dumps(told | kind))
    convert(text, tmp_path / "other.gguf")
    with GGUFFile(tmp_path / "other.gguf") as file:
        assert file.metadata["mistral3.attention.temperature_scale"] == pytest.approx(0.1)


def test_gemma3_default_sizes():
    """The 4B's config.json leaves sizes to transformers' defaults, which are the 4B's."""
    told = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024}  # fmt: skip
    fields = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": told}
    family = family_of(config := Fields(fields, "config.json"))
    keys = family.keys(family.usual_words(config))
    found = [keys[f"gemma3.{name}"][1] for name in (
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "vocab_size",
        "context_length", "rope.scaling.factor", "rope.freq_base",
    )]  # fmt: skip
    assert found == [8, 4, 256, 262208, 131072, 8.0, 1e6]


def test_null_scales_of_minicpm():
    """A scale of MiniCPM that is null changes nothing, while one that is missing is the 4B's."""
    found = {"depth": [], "base": []}
    for nulls in ({}, {"scale_depth": None, "dim_model_base": None}):
        family = family_of(config := Fields(MINICPM3 | {"q_lora_rank": 8} | nulls, ""))
        keys = family.keys(family.usual_words(config))
        found["depth"].append(keys["minicpm3.residual_scale"][1])
        found["base"].append(keys["minicpm3.logit_scale"][1])
    assert found == {"depth": [1.4, 1.0], "base": [HIDDEN / 256, 1.0]}


def test_base_model_names_without_prefix(tmp_path):
    """A base model saved without its output has names without a prefix, and gives the same file."""
    weights = opt()
    convert(written(tmp_path / "model", OPT, weights), tmp_path / "a.gguf", name="one")
    base = {name.removeprefix("model."): weight for name, weight in weights.items()}
    convert(written(tmp_path / "base", OPT, base), tmp_path / "b.gguf", name="one")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


STABLELM = {**NEOX, "architectures": ["StableLmForCausalLM"], "hidden_act": "silu"}
STARCODER2 = {**NEOX, "architectures": ["Starcoder2ForCausalLM"], "num_key_value_heads": 2,
              "rotary_pct": 1.0}  # fmt: skip
NEMOTRON = {**NEOX, "architectures": ["NemotronForCausalLM"]}
BLOOM = {"architectures": ["BloomForCausalLM"], "vocab_size": 9, "n_embed": HIDDEN, "n_layer": 1,
         "n_head": HEADS}  # fmt: skip
MPT = {"architectures": ["MPTForCausalLM"], "vocab_size": 9, "d_model": HIDDEN, "n_layers": 1,
       "n_heads": HEADS}  # fmt: skip
DEEPSEEK3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 9, "hidden_size": HIDDEN,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "intermediate_size": FFN,
    "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 4, "n_group": 4, "topk_group": 2,
}  # fmt: skip
GLM4MOE = {**DEEPSEEK3, "architectures": ["Glm4MoeForCausalLM"], "num_key_value_heads": 2,
           "rms_norm_eps": 1e-5}  # fmt: skip
ERNIEMOE = {**GLM4MOE, "architectures": ["Ernie4_5_MoeForCausalLM"], "rope_theta": 5e5,
            "moe_num_experts": 8, "moe_k": 2}  # fmt: skip
LFM2MOE = {**GLM4MOE, "architectures": ["Lfm2MoeForCausalLM"], "num_experts": 8}
GRANITE4 = {**GLM4MOE, "architectures": ["GraniteMoeHybridForCausalLM"]}
LONGER = {
    "type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "short_factor": [1.0],
    "long_factor": [1.0],
}
MINICPM3 = {**DEEPSEEK3, "architectures": ["MiniCPM3ForCausalLM"], "max_position_embeddings": 32}
GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"], "vocab_size": 9, "hidden_size": HIDDEN,
    "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": FFN,
    "num_key_value_heads": 2, "head_dim": 4, "global_head_dim": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "ALiBi": (FALCON | {"alibi": True}, "alibi is true; this family runs rotary positions"),
    "biases": (FALCON | {"bias": True}, "bias is true; this family's projections have none"),
    "one half after the other": (
        FALCON | {"new_decoder_architecture": False, "parallel_attn": False},
        "parallel_attn is false",
    ),
    "SiLU": (FALCON | {"activation": "silu"}, "activation is 'silu'; this family runs gelu, "),
    "groups that do not fit": (FALCON | {"num_kv_heads": 4}, "no multiple of head_count_kv 4"),
    "the 350M's norms": (
        OPT | {"do_layer_norm_before": False}, "do_layer_norm_before is false; this family runs"
    ),
    "the 350M's width": (
        OPT | {"word_embed_proj_dim": 16},
        "word_embed_proj_dim is 16; this family runs that of hidden_size, 24",
    ),
    "no biases": (OPT | {"enable_bias": False}, "enable_bias is false"),
    "plain norms": (OPT | {"layer_norm_elementwise_affine": False}, "affine is false"),
    "no last norm": (OPT | {"_remove_final_layer_norm": True}, "_remove_final_layer_norm is true"),
    "tanh": (OPT | {"activation_function": "tanh"}, "'tanh'; this family runs relu, gelu"),
    "fewer positions": (
        OPT | {"max_position_embeddings": 29},
        r"embed_positions.weight is \[32, 24\], not \[31, 24\]",
    ),
    "an odd part of StableLM": (
        STABLELM | {"partial_rotary_factor": 0.25, "num_key_value_heads": 6},
        "rope.dimension_count must be even and at most 4",
    ),
    "an odd part, YaRN": (
        NEOX | {"rotary_pct": 0.25, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        "rope_type is 'yarn': 1 elements of a head, which are odd",
    ),
    "no part": (NEOX | {"rotary_pct": 0.0}, "partial_rotary_factor must be above 0"),
    "SwiGLU": (NEOX | {"hidden_act": "silu"}, "hidden_act is 'silu'; this family runs gelu, "),
    "no biases of NeoX": (NEOX | {"attention_bias": False}, "attention_bias is false; this family"),
    "norms of heads": (NEOX | {"qk_layernorm": True}, "qk_layernorm is true; this family"),
    "no biases of StarCoder": (STARCODER2 | {"use_bias": False}, "use_bias is false"),
    "a part of StarCoder": (STARCODER2 | {"rotary_pct": 0.5}, "rotary_factor: this family turns"),
    "sizes of one model": (STARCODER2 | {"num_key_value_heads": None}, "heads is missing"),
    "GELU of Nemotron": (NEMOTRON | {"hidden_act": "gelu"}, "'gelu'; this family runs relu2"),
    "scales of blocks": (
        GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx is true, which"
    ),
    "no scale": (GPT2 | {"scale_attn_weights": False}, "scale_attn_weights is false, which"),
    "residuals of norms": (
        BLOOM | {"apply_residual_connection_post_layernorm": True}, "post_layernorm is true; this"
    ),
    "clipped": (MPT | {"attn_config": {"clip_qkv": 8}}, "attn_config: clip_qkv is 8; this family"),
    "norms of MPT": (MPT | {"attn_config": {"qk_ln": True}}, "qk_ln is True; this family has"),
    "no ALiBi": (MPT | {"attn_config": {"alibi": False}}, "alibi is false; this family runs"),
    "one head of keys": (
        MPT | {"attn_config": {"attn_type": "multiquery_attention"}}, "'multiquery_attention'; this"
    ),
    "halves of DeepSeek": (DEEPSEEK3 | {"rope_interleave": False}, "rope_interleave is false"),
    "null of DeepSeek": (DEEPSEEK3 | {"rope_interleave": None}, "rope_interleave is false"),
    "V2's groups": (
        DEEPSEEK3 | {"topk_method": "group_limited_greedy"}, "'; this family has noaux_tc"
    ),
    "softmax of DeepSeek": (DEEPSEEK3 | {"scoring_func": "softmax"}, "'softmax'; this family's"),
    "groups of experts": (DEEPSEEK3 | {"n_group": 3}, "expert_group_count 3, of which 2 are used"),
    "fewer than no dense layers": (
        GLM4MOE | {"first_k_dense_replace": -1}, "first_k_dense_replace must be at least 0, got -1"
    ),
    "dense layers of ERNIE": (ERNIEMOE | {"moe_layer_interval": 2}, "all layers behind the first"),
    "last mixture of ERNIE": (ERNIEMOE | {"moe_layer_end_index": 1, "num_hidden_layers": 3},
                              "moe_layer_end_index 1: all layers behind the first"),
    "weights of LFM 2": (LFM2MOE | {"norm_topk_prob": False}, "norm_topk_prob is false; this"),
    "biases of Granite 4": (GRANITE4 | {"mamba_proj_bias": True}, "in this family, projections"),
    "steps of Granite 4": (GRANITE4 | {"time_step_limit": [0.1, 1.0]}, "time_step_limit is"),
    "experts of Granite 4 without rope": (
        GRANITE4 | {"layers_block_type": ["attention"]}, "position_embedding_type is not rope"
    ),
    "biases of ERNIE": (ERNIEMOE | {"use_bias": True}, "use_bias is true; this family has no"),
    "experts of no number": (GLM4MOE | {"n_routed_experts": None}, "n_routed_experts is missing"),
    "grouped latent attention": (MINICPM3 | {"num_key_value_heads": 2}, "all heads have keys"),
    "biases of MiniCPM": (MINICPM3 | {"attention_bias": True}, "attention_bias is true; this"),
    "a first context of one": (
        MINICPM3 | {"rope_scaling": LONGER | {"original_max_position_embeddings": 1}},
        "original_max_position_embeddings is 1: nothing can be stretched from it",
    ),
    "longer rope of MiniCPM": (
        MINICPM3 | {"rope_scaling": LONGER}, "no attention_factor"
    ),
    "YaRN of MiniCPM": (
        MINICPM3 | {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "has default, linear, longro"
    ),
    "Llama's rope in DeepSeek": (
        DEEPSEEK3 | {"rope_scaling": {"type": "llama3"}}, "'llama3', which this family has not"
    ),
    "an odd latent vector": (DEEPSEEK3 | {"kv_lora_rank": 7}, "rank is 7: want an even number"),
    "experts of Gemma": (GEMMA4 | {"enable_moe_block": True}, "num_experts is missing"),
    "no order of Gemma": (GEMMA4 | {"use_bidirectional_attention": "all"}, "only causal models"),
    "rope of Gemma": (
        GEMMA4 | {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
        "is 'yarn': want proportional",
    ),
    "layers of Gemma": (
        GEMMA4 | {"per_layer_config": {"1": {"intermediate_size": 9}}},
        "intermediate_size differs between layers",
    ),
    "heads of Gemma": (
        GEMMA4 | {"per_layer_config": {"0": {"head_dim": 8}}}, "heads of one size here"
    ),
    "no keys to read": (GEMMA4 | {"num_kv_shared_layers": 2}, "is 2: block 0 has no keys"),
    "logits' scale": (MPT | {"logit_scale": "inv_sqrt_d_model"}, "logit_scale is 'inv_sqrt_d_"),
}  # fmt: skip


def test_starcoder2_window_is_converted():
    """A sliding window becomes a key; without one there is no key."""
    for window, told in ((64, [64]), (None, [])):
        config = Fields(STARCODER2 | {"sliding_window": window}, "config.json")
        keys = family_of(config).keys(config)
        assert [value for key, (_, value) in keys.items() if "window" in key] == told


@pytest.mark.parametrize(
    ("dims", "line"),
    [((2, 6, HIDDEN), "tensor .* is missing"), ((2, 5, HIDDEN), r"is \[2, 5, 24\]: its rows"),
     ((7,), r"gate_up_proj is \[7\]: its rows should be gates and as many ups")],
)  # fmt: skip
def test_incomplete_experts_are_refused(tmp_path, dims, line):
    """A shard that has gates and ups without downs, and such tensors of other dimensions."""
    config = GEMMA4 | {"enable_moe_block": True, "num_experts": 2, "top_k_experts": 1,
                       "moe_intermediate_size": 3}  # fmt: skip
    weights = opt() | {"model.layers.0.experts.gate_up_proj": np.ones(dims, np.float32)}
    with pytest.raises(CheckpointError, match=line):
        convert(written(tmp_path / "model", config, weights), tmp_path / "model.gguf")


@pytest.mark.parametrize(("config", "line"), FAULTS.values(), ids=FAULTS)
def test_unsupported_configs_are_refused(tmp_path, config, line):
    """One line names the file and the value that is not supported; nothing is written."""
    weights = falcon() if config["architectures"] == FALCON["architectures"] else opt()
    folder, out = written(tmp_path / "model", config, weights), tmp_path / "model.gguf"
    with pytest.raises(CheckpointError, match=line) as caught:
        convert(folder, out)
    assert str(caught.value).startswith(str(folder))
    assert str(caught.value).isprintable()
    assert not out.exists()
