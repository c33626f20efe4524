"""The families compared live with transformers and llama.cpp; skipped without them."""

import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from conformance.llama.peers.compare import (
    EXACT,
    LIMITS,
    demand_near,
    engine_logits,
    nmse,
)
from conformance.llama.peers.folder import words, write_json
from conformance.llama.peers.rounding import as_llama_cpp
from conformance.support.models.asked_of_llama_cpp import (
    AGREED,
    IN_SUPERBLOCKS,
    MIXTURES,
    ON_FOLDERS,
    ROUNDED,
    TANH,
    TANH_FOLDERS,
)
from conformance.support.models.family_configs import CONFIGS
from conformance.support.models.small_families import (
    SmallGemma4,
    exact,
    joined_experts,
)
from engine import MTP, Engine, SamplingParams
from engine.convert import convert
from engine.gguf.file import GGUFFile
from engine.quantise import Recipe, quantise
from reference.activations import gelu
from reference.formats import FORMATS
from reference.models.transformer import Weight
from reference.op import Array

UNUSUAL = {"ReLU": "its activation is relu", "GELU": "its activation is gelu",
           "tanh": "its activation is gelu_pytorch_tanh",
           "weights of sum 1": "its norm_topk_prob is true",
           "weights as they are": "its norm_topk_prob is false",
           "between pairs": "its YaRN is not truncated",
           "R+, norms of heads": "its queries and keys have norms",
           "a short window": "attention reaches 9 tokens back",
           "dense": "a part of its layers is dense",
           "mixtures, a scale": "its routed_scaling_factor is its own",
           "all mixtures, a scale": "its router has no bias",
          "scales and": "its scales are its own",
          "an eps of its own": "norms of its latent vectors have an eps of 1e-06",
          "VL": "what sees images is left out",
          "base in windows": "rope has a base of 10000 in layers with a window",
          "few layers": "it has windows, and layers without rope",
          "Gemma 2, no caps": "it has no attn_logit_softcapping and no final_logit_softcapping",
          "a query scale": "its query_pre_attn_scalar is its own"}  # fmt: skip
# llama.cpp has the products of latent attention in another order; Gemma's formula takes no table.
LATENT, GEMMAS = ("deepseek2", "minicpm3"), ("gemma", "gemma2", "gemma3", "gemma4")
# llama.cpp takes GELU's tanh form from a table in F16: the table's step is 2^-11 of a value.
TABLE = 2.0**-22


def tokens(count: int = 40) -> list[int]:
    return [1, *np.random.default_rng(0).integers(3, 67, count - 1).tolist()]


@pytest.fixture(name="saved", scope="module")
def _saved(hugging_face):
    def save(name: str, folder: Path) -> Path:
        hugging_face.save_random(CONFIGS[name], folder)
        write_json(folder / "tokenizer.json", words(67))
        if CONFIGS[name]["model_type"] == "exaone":  # transformers calls it a Llama
            config = json.loads((folder / "config.json").read_text())
            write_json(folder / "config.json", config | {"architectures": ["ExaoneForCausalLM"]})
        return folder

    return save


@pytest.mark.parametrize("name", CONFIGS)
def test_folders_are_read_alike(saved, hugging_face, name, tmp_path):
    """Folders saved by transformers are read by `assay convert`, and give transformers' logits."""
    folder, path = saved(name, tmp_path / "model"), tmp_path / "model.gguf"
    notes = convert(folder, path, "F32").notes
    assert [note.split(":")[0] for note in notes] == [
        words for mark, words in UNUSUAL.items() if mark in name
    ]
    theirs = hugging_face.logits_of_folder(folder, tokens())
    logits = engine_logits(path, tokens())
    demand_near(logits, theirs, EXACT / 10)
    hidden = hugging_face.hidden_of_folder(folder, tokens())
    with Engine.load(path, threads=2, kv_format="F32") as engine:
        assert nmse(engine.embed(tokens(), "none", normalize=False), hidden) <= EXACT / 10
        assert nmse(engine.embed(tokens(), normalize=False), hidden.mean(axis=0)) <= EXACT / 10
        ours = engine.score(tokens()[:29], tokens()[29:])
        greedy = [*tokens()[:29], int(theirs[28].argmax())]
        assert engine.score(greedy[:-1], greedy[-1:]).is_greedy
    total, is_greedy = hugging_face.score(theirs, tokens(), 29)
    # a log-probability moves by twice as much as the logits at most
    furthest = 2 * len(ours.logprobs) * float(np.abs(logits - theirs).max()) + 1e-9
    assert abs(ours.cumulative_logprob - total) <= furthest
    assert ours.is_greedy == is_greedy


def test_mxfp4_stays_what_it_is(hugging_face, tmp_path):
    """Blocks and scales of a gpt-oss checkpoint give transformers' numbers, and stay MXFP4 in the
    file, whatever the other tensors' format."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    folder, path = tmp_path / "model", tmp_path / "model.gguf"
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    hugging_face.save_random({**CONFIGS["gpt-oss"], **sizes}, folder)
    write_json(folder / "tokenizer.json", words(67))
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"quantization_config": {"quant_method": "mxfp4"}})
    tensors, wanted = load_file(folder / "model.safetensors"), {}
    draw = torch.Generator().manual_seed(1)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, elements, rows = tensors.pop(name).shape
        dims = experts, rows, elements // 32
        blocks = torch.randint(0, 256, (*dims, 16), generator=draw, dtype=torch.uint8)
        scales = torch.randint(118, 126, dims, generator=draw, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        values = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        wanted[name] = values.transpose(1, 2).numpy()
    save_file(tensors, folder / "model.safetensors")
    convert(folder, path, "F32")
    with GGUFFile(path) as file:
        for i, role in product(range(3), ("gate", "up", "down")):
            name = f"blk.{i}.ffn_{role}_exps.weight"
            part = slice(role == "up", None, 2) if role != "down" else slice(None)
            whole = "down_proj" if role == "down" else "gate_up_proj"
            theirs = wanted[f"model.layers.{i}.mlp.experts.{whole}"][:, part]
            assert file.tensors[name].type_name == "MXFP4"
            ours = FORMATS["MXFP4"].dequantise(file.tensor(name))
            assert np.array_equal(ours.reshape(theirs.shape), theirs)
    assert np.isfinite(engine_logits(path, tokens())).all()


def test_the_text_of_a_model_that_sees(saved, tmp_path):
    """Qwen 3.5 is published with a vision model: the text model's fields and tensors have other
    names, gates and ups of all experts are one tensor, and an MTP layer is there. The file is the
    text model's alone."""
    import torch
    from safetensors.torch import load_file, save_file

    folder, seeing = saved("Qwen 3.5, experts", tmp_path / "model"), tmp_path / "seeing"
    seeing.mkdir()
    config = json.loads((folder / "config.json").read_text())
    text = {**config, "rope_parameters": {**config["rope_parameters"], "mrope_section": [1, 1, 1]}}
    architectures = ["Qwen3_5MoeForConditionalGeneration"]
    write_json(seeing / "config.json", {"architectures": architectures, "text_config": text})
    write_json(seeing / "tokenizer.json", words(67))
    found = load_file(folder / "model.safetensors")
    for module in (f"model.layers.{i}.mlp.experts" for i in range(3)):
        each = [
            {n: found.pop(f"{module}.{e}.{n}_proj.weight") for n in ("gate", "up", "down")}
            for e in range(7)
        ]
        both = [torch.cat([e["gate"], e["up"]]) for e in each]
        found[f"{module}.gate_up_proj"] = torch.stack(both)
        found[f"{module}.down_proj"] = torch.stack([e["down"] for e in each])
    tensors = {name.replace("model.", "model.language_model.", 1): t for name, t in found.items()}
    tensors |= {"mtp.norm.weight": found["model.norm.weight"].clone()}
    tensors |= {"model.visual.pos_embed.weight": found["model.norm.weight"].clone()}
    save_file(tensors, seeing / "model.safetensors")
    convert(folder, tmp_path / "text.gguf", "F32")
    convert(seeing, tmp_path / "seeing.gguf", "F32")
    with GGUFFile(tmp_path / "text.gguf") as ours, GGUFFile(tmp_path / "seeing.gguf") as theirs:
        assert ours.tensors.keys() == theirs.tensors.keys()
        for name in ours.tensors:
            assert np.array_equal(ours.tensor(name), theirs.tensor(name)), name
        assert theirs.metadata["qwen35moe.rope.dimension_sections"] == [1, 1, 1, 0]


# Fields of config.json as they are published, by the folder of transformers that says the same.
PUBLISHED = {
    "Hunyuan, experts": {"moe_topk": [3, 3], "moe_intermediate_size": [77, 77],
                         "num_shared_expert": [1, 1], "use_cla": False},
    "dots.llm1": {"scoring_func": "noaux_tc"},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_fields_are_read_alike(saved, name, tmp_path):
    """Numbers that are lists of layers, and another name of the router, give the same file."""
    folder = saved(name, tmp_path / "model")
    convert(folder, tmp_path / "saved.gguf", "F32", name="one")
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | PUBLISHED[name])
    convert(folder, tmp_path / "published.gguf", "F32", name="one")
    assert (tmp_path / "published.gguf").read_bytes() == (tmp_path / "saved.gguf").read_bytes()


def test_a_model_that_sees_as_it_was_published(saved, tmp_path):
    """Qwen 2 VL was published with the text's fields and tensors where a text's alone has them; the
    file is the same."""
    from safetensors.torch import load_file, save_file

    folder = saved("Qwen 2 VL, text", tmp_path / "model")
    convert(folder, tmp_path / "saved.gguf", "F32", name="one")
    config = json.loads((folder / "config.json").read_text())
    text, kind = config.pop("text_config"), {"model_type": "qwen2_vl"}
    rope = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    flat = {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    write_json(folder / "config.json", text | config | flat | kind)
    tensors = load_file(folder / "model.safetensors")
    ends = (("model.language_model.", "model."), ("model.visual.", "visual."))
    for first, other in ends:
        tensors = {n.replace(first, other, 1): tensor for n, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    convert(folder, tmp_path / "published.gguf", "F32", name="one")
    assert (tmp_path / "published.gguf").read_bytes() == (tmp_path / "saved.gguf").read_bytes()


def test_experts_with_the_input_first(saved, tmp_path):
    """Published checkpoints of Qwen 3 VL have experts' tensors the other way round than those that
    transformers saves of a new model; the file is the same."""
    from safetensors.torch import load_file, save_file

    folder = saved("Qwen 3 VL, text, experts", tmp_path / "model")
    convert(folder, tmp_path / "last.gguf", "F32", name="one")
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, folder / "model.safetensors")
    convert(folder, tmp_path / "first.gguf", "F32", name="one")
    assert (tmp_path / "first.gguf").read_bytes() == (tmp_path / "last.gguf").read_bytes()


# What joins a token's embedding and what the head reads, the norms of both, and that behind.
DEEPSEEK = tuple(f"model.layers.3.{n}" for n in ("eh_proj", "enorm", "hnorm", "shared_head.norm"))
QWEN = ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
FORETELLING = {
    "DeepSeek V3": ("model.layers.3.", DEEPSEEK), "GLM 4.5, experts": ("model.layers.3.", DEEPSEEK),
    "Qwen 3 Next": ("mtp.layers.0.", QWEN), "Qwen 3.5": ("mtp.layers.0.", QWEN),
    "Qwen 3.5, experts": ("mtp.layers.0.", QWEN),
}  # fmt: skip


@pytest.mark.parametrize("name", FORETELLING)
def test_layers_of_mtp_are_taken(saved, name, tmp_path):
    """Two MTP layers follow the others, which only transformers has: logits are those without them,
    and drafts do not change the text. If config.json lists such a layer but the checkpoint has
    none, the file is the one without, bit for bit."""
    import torch
    from safetensors.torch import load_file, save_file

    folder, without = saved(name, tmp_path / "model"), tmp_path / "without.gguf"
    assert not convert(folder, without, "F32", name="one").notes
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"num_nextn_predict_layers": 1})
    convert(folder, tmp_path / "none.gguf", "F32", name="one")
    assert (tmp_path / "none.gguf").read_bytes() == without.read_bytes()
    tensors, (layer, modules) = load_file(folder / "model.safetensors"), FORETELLING[name]
    attending = [n.partition("self_attn.o_proj")[0] for n in tensors if "self_attn.o_proj" in n]
    second = layer.replace("3.", "4.").replace("0.", "1.")
    more = {n.replace(attending[-1], at): t for at in (layer, second) for n, t in tensors.items()
            if attending[-1] in n}  # fmt: skip
    width, draw = config["hidden_size"], torch.Generator().manual_seed(1)
    joining = torch.randn(width, 2 * width, generator=draw) * width**-0.5
    own = dict(zip(modules, (joining, *[torch.ones(width)] * 3), strict=True))
    more |= {f"{m.replace(layer, at)}.weight": t for m, t in own.items() for at in (layer, second)}
    more = {n: t.clone() for n, t in more.items()}
    save_file(tensors | more, folder / "model.safetensors")
    write_json(folder / "config.json", config | {"num_nextn_predict_layers": 2})
    path = tmp_path / "with.gguf"
    assert not convert(folder, path, "F32", name="one").notes
    assert np.array_equal(engine_logits(path, tokens()), engine_logits(without, tokens()))
    with GGUFFile(path) as file:
        found = FORMATS["F32"].dequantise(file.tensor("blk.3.nextn.eh_proj.weight"))
        assert np.array_equal(found, joining.numpy())
        norm = FORMATS["F32"].dequantise(file.tensor("blk.3.nextn.enorm.weight"))
        assert (norm == (2 if "Qwen" in name else 1)).all()
        assert "blk.4.attn_output.weight" in file.tensors
        assert ("blk.4.nextn.eh_proj.weight" in file.tensors) == ("Qwen" not in name)
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    with Engine.load(without, threads=1) as engine:
        plain = engine.generate([5, 9, 11], params).outputs[0].token_ids
    settings = MTP(draft_p_min=0.0, adaptive=False)
    with Engine.load(path, threads=1, speculation=settings) as engine:
        assert engine.generate([5, 9, 11], params).outputs[0].token_ids == plain
        assert engine.timings.speculation.drafted


@pytest.mark.parametrize("name", ON_FOLDERS)
def test_llama_cpp_agrees_on_folders(llama_cpp, saved, name, tmp_path):
    """llama.cpp opens files that `assay convert` made of transformers' folders."""
    folder, path = saved(name, tmp_path / "model"), tmp_path / "model.gguf"
    convert(folder, path, "F32")
    theirs = llama_cpp.logits(path, tokens())
    demand_near(engine_logits(path, tokens()), theirs, EXACT)


@pytest.mark.parametrize("name", TANH_FOLDERS)
def test_llama_cpp_agrees_on_folders_with_gelu(llama_cpp, saved, name, tmp_path):
    """The same where its table of GELU stands in every layer."""
    folder, path = saved(name, tmp_path / "model"), tmp_path / "model.gguf"
    convert(folder, path, "F32")
    theirs, layers = llama_cpp.logits(path, tokens()), CONFIGS[name]["num_hidden_layers"]
    demand_near(engine_logits(path, tokens()), theirs, layers * TABLE)


@pytest.mark.parametrize("small", MIXTURES, ids=lambda small: small.architecture)
def test_llama_cpp_agrees_on_mixtures(llama_cpp, small, tmp_path):
    """llama.cpp opens the same file and routes tokens to the same experts."""
    path = small.write(tmp_path / "small.gguf")
    demand_near(engine_logits(path, tokens()), llama_cpp.logits(path, tokens()), EXACT)


def test_llama_cpp_agrees_on_experts_with_gelu(llama_cpp, tmp_path):
    """Its table of GELU is used in each block's network and in the experts besides, so twice; F16
    also rounds the inputs of matrices."""
    small = SmallGemma4(blocks=3, shared=0, experts=6, per_layer=0)
    limits = ((small, 2 * TABLE), (joined_experts(small), 2 * TABLE),
              (replace(small, format="F16"), LIMITS["llama.cpp"]["F16"]))  # fmt: skip
    for one, limit in limits:
        path = one.write(tmp_path / "small.gguf", hidden_activation="gelu_pytorch_tanh")
        demand_near(engine_logits(path, tokens()), llama_cpp.logits(path, tokens()), limit)


def test_where_f16_decides_between_experts(llama_cpp, tmp_path):
    """For one token the first router gives two of this model's experts logits 2.5e-5 apart;
    llama.cpp's earlier rounding to F16 moves them by 4e-5, so it chooses the other one. It is near
    the formula with these roundings, the engine near the plain one, and both formulas are as far
    apart."""
    small = SmallGemma4(blocks=3, shared=0, experts=6, format="F16", seed=3)
    path = small.write(tmp_path / "small.gguf", hidden_activation="gelu_pytorch_tanh")
    plain, rounded = exact(small, tokens()), exact(small, tokens(), linear=as_llama_cpp)
    demand_near(engine_logits(path, tokens()), plain, EXACT / 10)
    theirs = llama_cpp.logits(path, tokens())
    assert nmse(theirs, rounded) <= 2 * LIMITS["llama.cpp"]["F16"] < 1e-2 < nmse(rounded, plain)


@pytest.mark.parametrize("small", AGREED, ids=lambda small: small.architecture)
def test_llama_cpp_agrees(llama_cpp, small, tmp_path):
    """llama.cpp opens the same file; its GELU is the tanh form, which the key tells the engine. Of
    `qwen2vl` it does not read eps, and has 0."""
    gelu = small.architecture in TANH
    words = {"hidden_activation": "gelu_pytorch_tanh"} if gelu else {}
    if small.architecture == "qwen2vl":
        words = {"attention__layer_norm_rms_epsilon": 1e-12}
    path = small.write(tmp_path / "small.gguf", **words)
    theirs = llama_cpp.logits(path, tokens())
    demand_near(engine_logits(path, tokens()), theirs, TABLE if gelu else EXACT)


def gelu_of_a_table(x: Array) -> Array:
    """llama.cpp's GELU, tanh form: a float16 for every float16."""
    return gelu(x.astype(np.float16).astype(np.float64)).astype(np.float16).astype(np.float64)


@pytest.mark.parametrize("form", ["F16", "Q8_0"])
@pytest.mark.parametrize("small", ROUNDED, ids=lambda small: small.architecture)
def test_what_llama_cpp_differs_by(llama_cpp, small, form, tmp_path):
    """The formula with llama.cpp's roundings of activations gives its logits, also where a mixture
    chooses other experts than the engine; except where an activation lies so near to the midpoint
    of two codes that float32 decides, which affects later tokens."""
    small, tanh = replace(small, format=form), small.architecture in TANH
    path = small.write(tmp_path / "small.gguf")
    theirs = llama_cpp.logits(path, tokens())
    how = {"activation": gelu_of_a_table} if tanh else {}
    rounded = exact(small, tokens(), linear=as_llama_cpp, **how)
    gaps = [nmse(ours, each) for ours, each in zip(rounded, theirs, strict=True)]
    least = TABLE if tanh else 1e-6 if form == "F16" else 1e-12
    assert np.quantile(gaps, 0.1) <= least
    assert nmse(rounded, theirs) <= LIMITS["llama.cpp"][form] * small.blocks


@pytest.mark.parametrize("form", ["Q8_0", "Q4_K_M"])
@pytest.mark.parametrize("small", IN_SUPERBLOCKS.values(), ids=IN_SUPERBLOCKS)
def test_llama_cpp_agrees_in_blocks(llama_cpp, small, form, tmp_path):
    """Both open what `quantise` made. llama.cpp's logits are those of the formula with its
    roundings of activations, as above. Such roundings move the formula's logits by some E; the
    engine's are no coarser, whether a scale is for 32 activations or for 256, so that the two are
    2 E apart at most, and the NMSE four times that of E; in mixtures for most tokens, since with
    another expert a token has another row."""
    tanh, some, made = small.architecture in TANH, tokens(24), tmp_path / "made.gguf"
    words = {"hidden_activation": "gelu_pytorch_tanh"} if tanh else {}
    with GGUFFile(small.write(tmp_path / "small.gguf", **words)) as file:
        quantise(file, made, Recipe(form), threads=1)
    weights, norms = small.tensors()
    with GGUFFile(made) as file:
        for name, old in weights.items():
            rows = file.tensor(name).reshape(*old.data.shape[:-1], -1)
            weights[name] = Weight(rows.copy(), file.tensors[name].type_name)
    formula = partial(small.formula(), np.array(some, np.int32), weights, norms, small.shape())
    how = {"activation": gelu_of_a_table} if tanh and small.architecture not in GEMMAS else {}
    plain, rounded = formula(), formula(linear=as_llama_cpp, **how)
    ours, theirs = engine_logits(made, some), llama_cpp.logits(made, some)

    def rows(a: Array, b: Array) -> list[float]:
        return [nmse(x, y) for x, y in zip(a, b, strict=True)]

    if small.architecture not in (*LATENT, *GEMMAS):
        assert min(rows(rounded, theirs)) <= (TABLE if tanh else 1e-12)
    assert np.median(rows(ours, theirs)) <= 4 * np.median(rows(rounded, plain))
    if not getattr(small, "experts", 0):
        assert nmse(ours, theirs) <= 4 * nmse(rounded, plain)
