"""Tensors and keys of a file that a family's graph does not use are refused by name, unless known
to be harmless."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.llama.peers.compare import engine_logits
from conformance.support.models.small_families import SUBJECTS as FAMILIES
from conformance.support.models.small_families import SmallGemma4, prompt
from conformance.support.models.small_models import Small, tampered
from conformance.support.models.small_recurrent import RECURRENT, SmallQwen3Next
from conformance.support.models.sparse_files import SmallSparse
from conformance.support.refusals import refusal
from engine.cache.cells import Cells
from engine.cache.states import States
from engine.compile.build import build
from engine.config import ModelError
from engine.embedded import embedded_models
from engine.gguf.file import GGUFFile
from engine.graph import Value
from engine.metadata.config import config_of
from engine.metadata.unused import ASKED, INFORMATION
from engine.model_info import model_info
from engine.options import Options

VOCABS = Path(__file__).resolve().parents[3] / "shared" / "vocabs"


def of_one_block(small: Small) -> Small:
    """The model with only its first block, which is dense."""
    own = {"leading": 1, "attending": (), "shared": 0}
    return replace(small, blocks=1, **{k: v for k, v in own.items() if hasattr(small, k)})


def is_dense(small: Small) -> bool:
    return not getattr(small, "experts", 0) or getattr(small, "leading", 0) >= small.blocks


KINDS = [small for small in (*FAMILIES.values(), *RECURRENT.values()) if is_dense(small)]
SUBJECTS: dict[str, Small] = {
    "llama": Small(blocks=1, biases=True),
    "bamboo": Small(blocks=1, architecture="bamboo"),
    **{small.architecture: of_one_block(small) for small in reversed(KINDS)},
    "qwen35, attending": SmallQwen3Next(blocks=1, architecture="qwen35", experts=0, interval=1),
    "sparse llama": SmallSparse(blocks=1, ranks=(32,), shares=(0.4,)),
}
each_subject = pytest.mark.parametrize("small", SUBJECTS.values(), ids=SUBJECTS)
GRANITE = ("attention.scale", "embedding_scale", "logit_scale", "residual_scale")
# Of the keys of ASKED those that a family computes with.
RUN = {
    **dict.fromkeys(("granite", "granitehybrid"), GRANITE),
    "command-r": ("logit_scale",),
    "cohere2": ("logit_scale",),
    "bloom": ("attention.max_alibi_bias",),
    "mpt": ("attention.max_alibi_bias",),
    "gemma2": ("attention.scale", "attn_logit_softcapping", "final_logit_softcapping"),
    "gemma3": ("attention.scale", "final_logit_softcapping"),
    "gemma4": ("attention.shared_kv_layers", "final_logit_softcapping"),
    "minicpm": ("embedding_scale", "logit_scale", "residual_scale"),
    "minicpm3": (
        "attention.kv_lora_rank",
        "attention.q_lora_rank",
        "embedding_scale",
        "logit_scale",
        "residual_scale",
    ),
    "qwen35": ("full_attention_interval", "nextn_predict_layers", "rope.dimension_sections"),
    **dict.fromkeys(("qwen2vl", "qwen3vl", "qwen3vlmoe"), ("rope.dimension_sections",)),
    "mistral3": ("attention.temperature_scale",),
}
VECTOR = np.ones(16, np.float32)
STRANGERS = {
    "blk.0.attn_sinks.weight": VECTOR,
    "blk.0.layer_output_norm.weight": np.ones(64, np.float32),
    "blk.0.ffn_gate.scale": np.ones(96, np.float32),
    "blk.0.ffn_gate_inp.weight": np.ones((8, 64), np.float32),
    "blk.1.attn_norm.weight": np.ones(64, np.float32),
    "rope_factors_medium.weight": np.ones(8, np.float32),
    "output.scale": np.ones(70, np.float32),
    "a b\n": VECTOR,
}  # fmt: skip
RMS = {"bamboo": {"attention__layer_norm_rms_epsilon": 1e-5}}


def written(small: Small, path: Path, more: dict[str, Any] | None = None, /, **keys: Any) -> Path:
    """The model's file with further tensors and keys."""
    return tampered(small, more or {}).write(path, **(RMS.get(small.architecture, {}) | keys))


def refused(path: Path) -> str:
    """The error line for a file, without the path that it begins with."""
    with GGUFFile(path) as file:
        return refusal(ModelError, path, model_info, file, Options())


@each_subject
def test_tensors_that_no_node_reads(small, tmp_path):
    """Unknown tensors are named, wherever they belong."""
    for name, values in STRANGERS.items():
        line = refused(written(small, tmp_path / "more.gguf", {name: values}))
        assert line.startswith(f"it has tensor {name!r}, which {small.architecture} of 1 blocks")
    line = refused(written(small, tmp_path / "more.gguf", STRANGERS))
    assert f"tensor {next(iter(STRANGERS))!r}, and {len(STRANGERS) - 1} more" in line


@each_subject
def test_every_known_tensor_is_read(small, tmp_path):
    """Every tensor that a family lists is used: by a node, by its rows, or, as RoPE divisors, by a
    constant."""
    everything = {}
    with GGUFFile(written(small, tmp_path / "small.gguf")) as file:
        found = model_info(file, Options())
        for name, dims in found.family.optional_tensors(found.config).items():
            if name not in file.tensors:
                everything[name] = np.ones(dims, np.float32)
    with GGUFFile(written(small, tmp_path / "all.gguf", everything)) as file:
        stored = set(file.tensors)
        found = model_info(file, Options())
        limits = {"tokens": 4, "outputs": 1}
        states = States(1, 1) if found.config.states else None
        built = build(file, found, found.config, Cells(16, 1, 8, states), limits, Options(), ())
    values = [value for node in built.graph.nodes for value in node.arguments.values()]
    read = {value.name for value in values if isinstance(value, Value) and value.kind == "weight"}
    wholes = {name: rows.tensor for name, rows in found.family.parts(found.config).items()}
    read = {wholes.get(name, name) for name in read} | {"rope_freqs.weight"}
    assert {name for name in stored - read if not name.startswith("rope_factors_")} == set()


def test_keys_that_another_block_has(tmp_path):
    """Gemma 4's last blocks use the keys of an earlier one; a file may have keys for them all the
    same."""
    more = {"blk.5.attn_k.weight": np.ones((24, 64), np.float32),
            "blk.5.attn_k_norm.weight": np.ones(24, np.float32)}  # fmt: skip
    with GGUFFile(written(SmallGemma4(), tmp_path / "more.gguf", more)) as file:
        model_info(file, Options())
    assert "blk.5.attn_k.bias" in refused(
        written(SmallGemma4(), tmp_path / "bad.gguf", {"blk.5.attn_k.bias": VECTOR})
    )


@each_subject
def test_harmless_tensors(small, tmp_path):
    """Buffers of old checkpoints are recomputed, and predictors may be unused."""
    more = {"blk.0.attn_rot_embd.weight": VECTOR}
    if not isinstance(small, SmallSparse):
        more |= {"blk.0.fc1.weight": np.ones((32, 64), np.float32),
                 "blk.0.fc2.weight": np.ones((96, 32), np.float32)}  # fmt: skip
    with GGUFFile(written(small, tmp_path / "more.gguf", more)) as file:
        model_info(file, Options(sparse="off" if isinstance(small, SmallSparse) else "auto"))


@each_subject
def test_keys_that_ask_for_more(small, tmp_path):
    """A key that would change results is named with its value and meaning; with a neutral value it
    is harmless."""
    path = tmp_path / "more.gguf"
    more = {key: it for key, it in ASKED.items() if key not in RUN.get(small.architecture, ())}
    for key, (asked, nothing) in more.items():
        value = 30.0 if isinstance(nothing[0], int) else "another"
        line = refused(written(small, path, **{key.replace(".", "__"): value}))
        name = small.architecture
        assert line.startswith(f"{name}.{key} is {value!r}, but {name} here has no {asked}")
    harmless = {key.replace(".", "__"): nothing[0] for key, (_, nothing) in more.items()}
    told = {key.replace(".", "__"): 7 for key in INFORMATION if "epsilon" not in key}
    told["rope__scaling__finetuned"] = True
    if small.architecture == "gemma4":  # whose blocks with a window have heads of their own sizes
        told = {key: value for key, value in told.items() if not key.endswith("_swa")}
    if hasattr(small, "taps"):  # of a recurrent block
        told = {key: value for key, value in told.items() if not key.startswith("ssm__")}
    with GGUFFile(written(small, path, **harmless, **told)) as file:
        model_info(file, Options())


@pytest.mark.parametrize("key", ["use_qk_norm", "rope.scaling.yarn_gamma", "wkv.head_size", ""])
@each_subject
def test_keys_that_nobody_knows(small, key, tmp_path):
    """Under the architecture's name even a zero is refused, with the command that removes it."""
    path = written(small, tmp_path / "more.gguf", **{key.replace(".", "__"): 0})
    line = refused(path)
    assert line.startswith(f"key '{small.architecture}.{key}' is not known here")
    assert "assay inspect MODEL --remove KEY -o OUT" in line


PLAIN: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 8192,
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def test_lists_of_values():
    """One value a block: harmless if each of them is."""
    key = "llama.swiglu_clamp_exp"
    config_of(PLAIN | {key: [0.0, 0.0]}, 70)
    with pytest.raises(ModelError, match=r"swiglu_clamp_exp is \[0\.0, 7\.0\]"):
        config_of(PLAIN | {key: [0.0, 7.0]}, 70)
    with pytest.raises(ModelError) as caught:
        config_of(PLAIN | {key: [1.0] * 1000}, 70)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [np.nan, "", "30", True, -1])
def test_odd_values(value):
    """Only zero counts as zero."""
    with pytest.raises(ModelError, match="attn_logit_softcapping"):
        config_of(PLAIN | {"llama.attn_logit_softcapping": value}, 70)


def test_keys_under_other_names():
    """A vendor's own keys are ignored; those of another kind of model are refused."""
    vendors = {"mradermacher.quantize_version": "2", "quantize.imatrix.entries_count": 224,
               "quantize.imatrix.file": "x.dat", "general.sampling.top_k": 40,
               "general.tags": ["a"], "split.no": 0, "split.count": 0, "unsloth.fixed": True,
               "powerinfer.sparse_threshold": 0.5, "qwen2.rope.freq_base": 1e6,
               "tokenizer.ggml.add_sep_token": False, "llamas.wings": 2}  # fmt: skip
    config_of(PLAIN | vendors, 70)
    for key in ("adapter.type", "clip.vision.image_size", "diffusion.shift_logits",
                "xielu.beta"):  # fmt: skip
        with pytest.raises(ModelError, match=f"key '{key}' is of "):
            config_of(PLAIN | {key: 1}, 70)


def test_a_window_of_attention(tmp_path):
    """Logits are the same up to its end, and different beyond it."""
    small = SUBJECTS["llama"]
    tokens, found = prompt(small), {}
    for window in (0, 9, 4096):
        path = written(small, tmp_path / f"{window}.gguf", attention__sliding_window=window)
        found[window] = engine_logits(path, tokens)
    assert_array_equal(found[4096], found[0])
    assert_array_equal(found[9][:9], found[0][:9])
    assert (found[9][9:] != found[0][9:]).any(axis=1).all()


@pytest.mark.parametrize("name", sorted(set(embedded_models())))
def test_embedded_models(name):
    """Assay's own models have no unused tensors or keys."""
    with GGUFFile(embedded_models()[name]) as file:
        model_info(file, Options())


@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm", "phi-3", "qwen2"])
def test_keys_of_real_converters(name):
    """All keys that llama.cpp's converter writes are known, for any family."""
    path = VOCABS / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with GGUFFile(path) as file:
        theirs = file.metadata["general.architecture"]
        metadata = {
            key.replace(f"{theirs}.", "llama.", 1): value for key, value in file.metadata.items()
        }
    config_of(metadata | {"general.architecture": "llama"}, 70)


def test_keys_of_mamba_in_a_granite_that_only_attends(tmp_path):
    """llama.cpp's converter writes Mamba 2's sizes for every Granite 4."""
    small = FAMILIES["Granite"]
    ssm = {
        "conv_kernel": 4,
        "inner_size": 128,
        "state_size": 8,
        "time_step_rank": 8,
        "group_count": 1,
    }
    keys = {f"ssm__{name}": size for name, size in ssm.items()}
    paths = small.write(tmp_path / "plain.gguf"), small.write(tmp_path / "four.gguf", **keys)
    assert_array_equal(*(engine_logits(path, [1, 5, 9]) for path in paths))


def test_longrope_without_divisors(tmp_path):
    """What the key asks for is two tensors."""
    path = FAMILIES["MiniCPM"].write(tmp_path / "long.gguf", rope__scaling__type="longrope")
    line = refusal(ModelError, path, engine_logits, path, [1, 5])
    assert line == "tensor rope_factors_short.weight is missing"


def test_scales_of_a_minicpm_that_says_none(tmp_path):
    """They are the paper's, for the model's own depth and width."""
    small = replace(FAMILIES["MiniCPM"], architecture="llama")
    with GGUFFile(small.write(tmp_path / "none.gguf")) as file:
        keys = {k.replace("llama.", "minicpm."): v for k, v in file.metadata.items()}
    found = config_of(keys | {"general.architecture": "minicpm"}, small.vocab).scales
    assert (found.embedding, found.attention, found.logits) == (12.0, None, 256 / small.hidden)
    assert found.residual == pytest.approx(1.4 / small.blocks**0.5)
