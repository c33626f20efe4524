"""`assay convert`: whether tensors and constants arrive, and what bad folders give.

The logits of what it writes are judged by test_peer_goldens.py and test_transformers.py.
"""

import json
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

from conformance.llama.peers.checkpoint import CHECKPOINTS, LLAMA3, YARN
from conformance.llama.peers.folder import (
    words,
    write_folder,
    write_json,
    write_safetensors,
    write_weights,
)
from conformance.support.files.full_disk import full_after
from conformance.support.models import torch_archive
from engine.atomic_write import OutputError
from engine.convert import FAMILIES, CheckpointError, conversion, convert
from engine.gguf.file import GGUFFile
from engine.shell.program import app
from reference.formats import FORMATS
from reference.op import Array

SMALL = CHECKPOINTS["grouped_query"]
Q_PROJ, LM_HEAD = "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"
SAMPLES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": LM_HEAD,
    "blk.1.attn_v.weight": "model.layers.1.self_attn.v_proj.weight",
    "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight",
    "blk.1.ffn_norm.weight": "model.layers.1.post_attention_layernorm.weight",
}


def tensors(path: Path) -> dict[str, tuple[str, Array]]:
    """Formats and stored bytes by name."""
    with GGUFFile(path) as file:
        return {n: (i.type_name, file.tensor(n).copy()) for n, i in file.tensors.items()}


def metadata(path: Path) -> dict[str, Any]:
    with GGUFFile(path) as file:
        return file.metadata


@pytest.fixture
def folder(tmp_path):
    return write_folder(SMALL, tmp_path / "model")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_weights_are_converted_bit_for_bit(tmp_path, out, dtype):
    """Matrices keep their format and bits; vectors become F32."""
    convert(write_folder(SMALL, tmp_path / "model", dtype), out, dtype)
    found, layout = tensors(out), FORMATS[dtype]
    for ours, theirs in SAMPLES.items():
        weight = SMALL.weights()[theirs]
        exact = layout.quantise(weight)
        if weight.ndim == 1:
            exact = layout.dequantise(exact).view(np.uint8)
        kind, stored = found[ours]
        assert kind == ("F32" if weight.ndim == 1 else dtype)
        assert np.array_equal(stored, exact), ours
    assert len(found) == len(SMALL.weights())


def test_rope_rows_are_permuted_by_head(folder, out):
    """Row 2i of a head was row i, row 2i + 1 was row i + head_dim / 2."""
    convert(folder, out, "F32")
    stored = tensors(out)["blk.0.attn_q.weight"][1].view(np.float32)
    weight, size = SMALL.weights()[Q_PROJ], SMALL.head_dim
    for head in range(SMALL.num_attention_heads):
        for i in range(size // 2):
            for k in range(2):
                theirs = weight[head * size + i + k * size // 2]
                assert np.array_equal(stored[head * size + 2 * i + k], theirs)


@pytest.mark.parametrize("index", [True, False])
def test_sharded_checkpoints_give_the_same_file(folder, tmp_path, out, index):
    """Several files, with an index or numbered, are one model, in pieces of any size."""
    convert(folder, out, "Q8_0", "name")
    parts = write_folder(SMALL, tmp_path / "parts", shards=3, index=index)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "PIECE", 100)
        convert(parts, tmp_path / "parts.gguf", "Q8_0", "name")
    assert out.read_bytes() == (tmp_path / "parts.gguf").read_bytes()


def test_q8_0_blocks_equal_the_gguf_package(tmp_path, out):
    """Q8_0 is quantised as llama.cpp's own package does."""
    checkpoint = CHECKPOINTS["blocks"]
    done = convert(write_folder(checkpoint, tmp_path / "model"), out, "Q8_0")
    kind, stored = tensors(out)["token_embd.weight"]
    weight = checkpoint.weights()["model.embed_tokens.weight"]
    wanted = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
    assert (kind, done.notes) == ("Q8_0", [])
    assert np.array_equal(stored, wanted)


def test_rows_with_partial_blocks_fall_back_to_f16(folder, out):
    """Rows of 48 cannot be Q8_0: they are stored as F16, and a note names these tensors."""
    done = convert(folder, out, "Q8_0")
    kinds = {kind for kind, stored in tensors(out).values() if stored.ndim == 2}
    assert kinds == {"F16"}
    assert done.notes == [n for n in done.notes if "no whole blocks of Q8_0: token_embd" in n]


@pytest.mark.parametrize("kept", ["both", "one", "another"])
def test_tied_embeddings_have_no_output_tensor(tmp_path, out, kept):
    """Whether or not the checkpoint stores the embedding twice; but an output that is another
    matrix is kept, as by transformers, and a note says so."""
    checkpoint = CHECKPOINTS["tied"]
    folder = write_folder(checkpoint, tmp_path / "model")
    weights = checkpoint.weights()
    output = weights["model.embed_tokens.weight"].copy()
    output[-1, -1] += kept == "another"
    extra = {} if kept == "one" else {LM_HEAD: output}
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(6, np.float32)}
    write_weights(folder, weights | extra | old)
    notes, found = convert(folder, out, "F32").notes, tensors(out)
    assert len(found) == len(weights) + (kept == "another") == len(weights) + len(notes)
    if kept == "another":
        assert "its output is not its embedding" in notes[0]
        assert np.array_equal(found["output.weight"][1].view(np.float32), output)


def test_metadata_equals_llama_cpps(folder, out):
    """The keys of the model's sizes, and of the file itself, are those of llama.cpp's converter."""
    convert(folder, out, "BF16", "Small")
    found = metadata(out)
    wanted = {
        "general.architecture": "llama", "general.type": "model", "general.name": "Small",
        "general.file_type": gguf.LlamaFileType.MOSTLY_BF16, "general.quantization_version": 2,
        "general.size_label": "46K", "llama.block_count": 2, "llama.context_length": 256,
        "llama.embedding_length": 48, "llama.feed_forward_length": 88,
        "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 12, "llama.rope.dimension_count": 12,
        "llama.vocab_size": 67, "llama.rope.freq_base": 10000.0,
    }  # fmt: skip
    assert {key: found[key] for key in wanted} == wanted
    assert found["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)


def test_a_model_is_named_after_its_folder(folder, tmp_path, out):
    """In Hugging Face's cache the folder is a hash, and the model's name is the one above it."""
    convert(folder, out)
    assert metadata(out)["general.name"] == "model"
    cached = tmp_path / "models--org--Small-1M" / "snapshots" / "0123abc"
    convert(write_folder(SMALL, cached), out)
    assert metadata(out)["general.name"] == "Small-1M"


@pytest.mark.parametrize("scaling", [LLAMA3, YARN, {"type": "linear", "factor": 2.0}, None])
def test_old_and_new_rope_fields_give_the_same_file(tmp_path, out, scaling):
    """transformers 4 has rope_theta and rope_scaling, transformers 5 rope_parameters."""
    old = replace(SMALL, rope_theta=5e5, rope_scaling=scaling)
    convert(write_folder(old, tmp_path / "model"), out, "F32")
    parameters = {"rope_theta": 5e5, **(scaling or {"rope_type": "default"})}
    new = {"rope_parameters": parameters, "rope_theta": None, "rope_scaling": None}
    other = tmp_path / "other.gguf"
    convert(write_folder(old, tmp_path / "model", **new), other, "F32")
    assert out.read_bytes() == other.read_bytes()
    assert ("rope_freqs.weight" in tensors(out)) == (scaling == LLAMA3)


def rewrite(folder: Path, name: str = "config.json", **fields: Any) -> None:
    path = folder / name
    write_json(path, (json.loads(path.read_bytes()) if path.exists() else {}) | fields)


def reweight(folder: Path, **changed: Array | None) -> None:
    """Other weights: of another value, or None for none."""
    weights = SMALL.weights() | {name.replace("__", "."): w for name, w in changed.items()}
    write_weights(folder, {n: w for n, w in weights.items() if w is not None})


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def with_one(value: float) -> Array:
    weight = SMALL.weights()[Q_PROJ]
    weight[3, 5] = value
    return weight


def remove_a_shard(folder: Path, index: bool) -> None:
    (folder / "model.safetensors").unlink()
    write_weights(folder, SMALL.weights(), shards=3, index=index)
    (folder / "model-00002-of-00003.safetensors").unlink()


def as_integers(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"dtype": "F32"', b'"dtype": "I32"'))


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown architecture": (
        {"architectures": ["BertModel"], "model_type": "ber"},
        "architecture is 'BertModel', which is none of --print-supported-models",
    ),
    "an architecture whose op is missing": (
        {"architectures": ["HunYuanVLForConditionalGeneration"], "model_type": "hunyuan_vl"},
        "which is missing rope of several positions a token",
    ),
    "what is seen by no list of layers": (
        {
            "architectures": ["Qwen3VLForConditionalGeneration"], "head_dim": 12,
            "vision_config": {"deepstack_visual_indexes": 3},
        },
        "vision_config: deepstack_visual_indexes must be a list, got 3",
    ),
    "no architecture": ({"architectures": None}, "architectures must name one"),
    "a window": (
        {"architectures": ["MistralForCausalLM"], "sliding_window": -1},
        "sliding_window must be a count of at least 1",
    ),
    "windows in layers": (
        {"architectures": ["Olmo2ForCausalLM"], "use_sliding_window": True},
        "use_sliding_window: this family has no windows of some",
    ),
    "windows in so many layers": (
        {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True,
         "max_window_layers": -1},
        "max_window_layers must be at least 0, got -1",
    ),
    "a size that the family has not": (
        {"architectures": ["Qwen3ForCausalLM"], "head_dim": None}, "head_dim is missing"
    ),
    "other layers without rope": (
        {"architectures": ["SmolLM3ForCausalLM"], "rope_theta": 1e6, "no_rope_layers": [1, 0]},
        "no_rope_layers: this family has no rope in every 4th alone",
    ),
    "a theta that the family has not": (
        {"architectures": ["SmolLM3ForCausalLM"], "rope_theta": None}, "rope_theta is missing"
    ),
    "long rope in another family": ({"rope_scaling": {"type": "longrope"}}, "this family has not"),
    "norms of queries and keys": (
        {"architectures": ["Cohere2ForCausalLM"], "rope_theta": 1e4, "use_qk_norm": True},
        "use_qk_norm is true; this family has no norms",
    ),
    "groups of experts": (
        {"architectures": ["DeepseekV2ForCausalLM"], "topk_method": "group_limited_greedy"},
        "topk_method is 'group_limited_greedy'; this family has greedy",
    ),
    "another eps of latent vectors": (
        {"architectures": ["DeepseekV2ForCausalLM"], "rms_norm_eps": 1e-5},
        "rms_norm_eps: norms of latent vectors have 1e-06",
    ),
    "weights of sum 1": (
        {"architectures": ["DeepseekV2ForCausalLM"], "norm_topk_prob": True},
        "norm_topk_prob is true; this family computes without it",
    ),
    "two magnitudes": (
        {
            "architectures": ["DeepseekV2ForCausalLM"], "rms_norm_eps": 1e-6,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0},
        },
        "mscale and mscale_all_dim: this family wants them alike",
    ),
    "a scale of zero": (
        {"architectures": ["GraniteForCausalLM"], "residual_multiplier": 0}, "a scale is 0"
    ),
    "attention to what follows": (
        {"architectures": ["GemmaForCausalLM"], "use_bidirectional_attention": True,
         "hidden_act": "gelu"},
        "use_bidirectional_attention is true",
    ),
    "a strange kind of layer": (
        {"architectures": ["Gemma2ForCausalLM"], "layer_types": ["full_attention", "mamba"]},
        "layer_types: want 2 of full_attention, sliding_attention, got .*mamba",
    ),
    "a cap that nobody heeds": (
        {"architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": 50.0},
        "attn_logit_softcapping is set, which transformers ignores",
    ),
    "windows that are stretched": (
        {"architectures": ["Gemma3ForCausalLM"],
         "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
        "rope_type is 'linear': want default in layers with a window",
    ),
    "kinds that are none": (
        {"architectures": ["Gemma2ForCausalLM"], "layer_types": [{}, []]}, "layer_types: want 2 of"
    ),
    "layers without end": (
        {"architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 2**31 - 1},
        "num_hidden_layers is 2147483647: at most",
    ),
    "gates clamped elsewhere": (
        {"architectures": ["GptOssForCausalLM"], "head_dim": 8, "rope_theta": 1e4,
         "rms_norm_eps": 1e-5, "attention_bias": True, "swiglu_limit": 8.0},
        "swiglu_limit is 8; this family has 7",
    ),
    "no biases": (
        {"architectures": ["GptOssForCausalLM"], "head_dim": 8, "rope_theta": 1e4,
         "rms_norm_eps": 1e-5, "attention_bias": False},
        "attention_bias is false; this family has biases",
    ),
    "the exact GELU": (
        {"architectures": ["Gemma2ForCausalLM"], "hidden_activation": "gelu"},
        "hidden_activation is 'gelu'; this family runs gelu_pytorch_tanh",
    ),
    "biases of projections": (
        {"architectures": ["MambaForCausalLM"], "use_bias": True}, "use_bias is true"
    ),
    "a convolution without a bias": (
        {"architectures": ["MambaForCausalLM"], "use_conv_bias": False}, "use_conv_bias is false"
    ),
    "biases of convolutions": (
        {"architectures": ["Lfm2ForCausalLM"], "conv_bias": True}, "conv_bias is true"
    ),
    "layers of another kind": (
        {"architectures": ["Lfm2ForCausalLM"], "layer_types": ["conv", "mamba"]},
        "layer_types: want 2 of full_attention, conv, got .*mamba",
    ),
    "another eps than of states": (
        {"architectures": ["Qwen3_5ForCausalLM"], "head_dim": 8, "num_key_value_heads": 2,
         "rms_norm_eps": 1e-5},
        "rms_norm_eps: queries and keys of this family's states have 1e-06",
    ),
    "values longer than keys": (
        {"architectures": ["Qwen3NextForCausalLM"], "head_dim": 8, "num_key_value_heads": 2,
         "rms_norm_eps": 1e-6, "linear_key_head_dim": 8, "linear_value_head_dim": 16},
        "linear_value_head_dim: keys are as long as values",
    ),
    "steps with limits": (
        {"architectures": ["Mamba2ForCausalLM"], "time_step_limit": [0.01, 0.1]},
        "time_step_limit is .*this family's steps have no limits",
    ),
    "queries scaled by nothing": (
        {"architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 0},
        "query_pre_attn_scalar must be positive, got 0",
    ),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, r"already \(gptq\)"),
    "a size missing": ({"hidden_size": None}, "hidden_size is missing"),
    "a size in words": ({"hidden_size": "48"}, "hidden_size must be a count"),
    "two ropes": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
         "rope_scaling": {"type": "linear", "factor": 2.0}},
        "rope_scaling and rope_parameters differ in type: want one",
    ),
    "an unknown rope": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "is 'dynamic'"),
    "rope of a part": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "odd sizes": ({"num_key_value_heads": 3}, "no multiple of head_count_kv 3"),
}  # fmt: skip
Corrupt = Callable[[Path], object]
FAULTS: dict[str, tuple[Corrupt, str]] = {
    "no folder": (lambda f: f.rename(f.with_name("gone")), "model: this is not a folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json: cannot be read: no such"),
    "config no JSON": (lambda f: truncate(f / "config.json", 20), "config.json: this is not JSON"),
    "config a list": (lambda f: write_json(f / "config.json", []), "want a JSON object, got list"),
    **{name: (partial(rewrite, **fields), line) for name, (fields, line) in CONFIGS.items()},
    "a missing shard": (lambda f: remove_a_shard(f, True), "00002-of-00003.* shard is missing"),
    "a shard not counted": (lambda f: remove_a_shard(f, False), "00002-of-00003.* is missing"),
    "a strange shard": (
        lambda f: rewrite(f, "model.safetensors.index.json", weight_map={"a": "../x"}),
        "'../x' is not a file beside it",
    ),
    "an index of more": (
        lambda f: rewrite(
            f, "model.safetensors.index.json", weight_map={"a": "model.safetensors"}
        ),
        "no shard has tensor 'a'",
    ),
    "a tensor twice": (
        lambda f: (
            write_safetensors(f / "b", {LM_HEAD: ("F32", SMALL.weights()[LM_HEAD])}),
            rewrite(
                f, "model.safetensors.index.json",
                weight_map={"a": "model.safetensors", LM_HEAD: "b"},
            ),
        ),
        "another shard has a tensor 'lm_head.weight', too",
    ),
    "cut short": (
        lambda f: truncate(f / "model.safetensors", 60_000),
        "model.safetensors: not a whole safetensors file",
    ),
    "a pointer": (
        lambda f: (f / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/"),
        "a Git LFS pointer",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "there are no weights"),
    "integers": (as_integers, "is I32; readable are F32, F16, BF16"),
    "a tensor missing": (lambda f: reweight(f, lm_head__weight=None), "lm_head.weight is missing"),
    "a bias missing": (
        lambda f: (
            rewrite(f, architectures=["Qwen2ForCausalLM"]),
            reweight(f, **{f"model__layers__{i}__self_attn__{n}_proj__bias": np.ones(size, "f4")
                          for i, n, size in ((0, "q", 48), (0, "k", 24), (0, "v", 24))}),
        ),
        "tensor model.layers.1.self_attn.q_proj.bias is missing",
    ),
    "a bias that config.json denies": (
        lambda f: reweight(f, model__layers__0__mlp__up_proj__bias=np.ones(88, np.float32)),
        "tensor model.layers.0.mlp.up_proj.bias has no place",
    ),
    "a bias that config.json claims": (
        lambda f: rewrite(f, attention_bias=True), "self_attn.q_proj.bias is missing"
    ),
    "a tensor too many": (
        lambda f: reweight(f, model__layers__0__input_layernorm__bias=np.zeros(48, np.float32)),
        "tensor model.layers.0.input_layernorm.bias has no place",
    ),
    "another shape": (
        lambda f: reweight(f, lm_head__weight=np.zeros((67, 47), np.float32)),
        r"lm_head.weight is \[67, 47\], not \[67, 48\]",
    ),
    "NaN": (
        lambda f: reweight(f, **{Q_PROJ.replace(".", "__"): with_one(np.nan)}),
        f"{Q_PROJ}: element 5 of row 3 is nan",
    ),
    "too large": (
        lambda f: reweight(f, **{Q_PROJ.replace(".", "__"): with_one(-65536.0)}),
        f"{Q_PROJ}: element 5 of row 3 is -65536, which F16 cannot hold",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "there is no tokenizer"),
    "no tokenizer but a strange one": (
        lambda f: (f / "tokenizer.json").rename(f / "tokenizer.model"),
        "not a SentencePiece model",
    ),
    "too many tokens": (
        lambda f: write_json(f / "tokenizer.json", words(68)), "68 tokens, but the model has 67"
    ),
    "a tokenizer of another kind": (
        lambda f: rewrite(
            f, "tokenizer.json", model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
        ),
        "of type WordLevel",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("corrupt", "line"), FAULTS.values(), ids=FAULTS)
def test_bad_folders_are_refused(folder, out, corrupt, line):
    """One line names the file and the error; an older output file stays, and no other."""
    out.write_bytes(b"older")
    corrupt(folder)
    before = sorted(path.name for path in out.parent.iterdir())
    with pytest.raises(CheckpointError, match=line) as caught:
        convert(folder, out, "F16")
    assert "\n" not in str(caught.value)
    assert out.read_bytes() == b"older"
    assert sorted(path.name for path in out.parent.iterdir()) == before


def test_pickled_checkpoints_give_the_same_file(folder, tmp_path, out):
    """PyTorch's files are read without PyTorch; a pickle that is no state dict is refused."""
    convert(folder, out, "F32")
    pickle = folder / "pytorch_model.bin"
    torch_archive.save(OrderedDict(SMALL.weights()), pickle)
    (folder / "model.safetensors").unlink()
    convert(folder, tmp_path / "other.gguf", "F32")
    assert out.read_bytes() == (tmp_path / "other.gguf").read_bytes()
    for other, line in (
        ([np.zeros(2)], "this is not a table of tensors"),
        ({Q_PROJ: "a"}, f"{Q_PROJ!r} in it is no tensor"),
        (SMALL.weights() | {Q_PROJ: np.zeros((48, 48), np.int32)}, "is I32; readable are F32"),
    ):
        torch_archive.save(other, pickle)
        with pytest.raises(CheckpointError, match=rf"pytorch_model\.bin: .*{line}|model: .*{line}"):
            convert(folder, out)
    torch_archive.save(SMALL.weights(), pickle)
    with pytest.raises(CheckpointError, match="truncated while being read"):
        convert(folder, out, progress=lambda *_: os.truncate(pickle, 2000))


def test_a_shard_modified_while_it_is_read_is_refused(folder, out):
    """A shard that is written to while it is read ends the conversion with an error."""
    weights = folder / "model.safetensors"
    with pytest.raises(CheckpointError, match="changed while it was read"):
        convert(folder, out, progress=lambda *_: os.utime(weights, (1, 1)))
    with pytest.raises(CheckpointError, match="truncated while being read"):
        convert(folder, out, progress=lambda *_: os.truncate(weights, 2000))
    assert not out.exists()


def test_invalid_output_paths_are_refused(folder, tmp_path):
    """A folder, a missing one, and a file of the checkpoint are refused; nothing is left."""
    weights = folder / "model.safetensors"
    before = weights.read_bytes()
    for place, line in (
        (folder, "is not a file"),
        (tmp_path / "none" / "a.gguf", "there is no folder"),
        (weights, "it is a file of the model"),
    ):
        with pytest.raises(OutputError, match=line):
            convert(folder, place)
    assert weights.read_bytes() == before


def test_a_full_disk_leaves_no_file(folder, out):
    """When the disk is full after 4096 bytes, no partial file is left."""
    with full_after(4096), pytest.raises(OutputError, match="cannot be written: file too large"):
        convert(folder, out)
    assert sorted(path.name for path in out.parent.iterdir()) == ["model"]


def test_the_command_reports_the_file(folder, out):
    """It prints a line for people, and JSON for programs."""
    run = CliRunner().invoke
    told = run(app, ["convert", str(folder), str(out), "--outtype", "q8_0", "--json"])
    found = json.loads(told.stdout)
    assert (told.exit_code, found["tensors"]) == (0, len(SMALL.weights()))
    assert "no whole blocks of Q8_0" in found["notes"][0]
    told = run(app, ["convert", str(folder), str(out)])
    assert (told.exit_code, told.stdout) == (0, f"{out}: 21 tensors, 0.1 MB\n")
    assert run(app, ["convert", str(folder), str(out), "--outtype", "q9"]).exit_code == 2


def test_supported_models_are_listed():
    """`--print-supported-models` needs no other argument."""
    told = CliRunner().invoke(app, ["convert", "--print-supported-models"])
    assert told.exit_code == 0
    for family in FAMILIES:
        assert all(name in told.stdout for name in family.architectures)
