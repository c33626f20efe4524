"""The engine compared with Hugging Face transformers; without it these tests are skipped."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conformance.llama.peers.checkpoint import (
    CHECKPOINTS,
    LLAMA3,
    QUESTIONS,
    YARN,
    YARN_TUNED,
    rounded,
)
from conformance.llama.peers.compare import EXACT, demand_near, engine_logits, limit
from conformance.llama.peers.export import export
from conformance.llama.peers.folder import words, write_folder, write_json, write_weights
from conformance.support.child import output_of
from conformance.support.tokenizer.tokenizer_files import TEMPLATE, small
from engine import Engine
from engine.convert import CheckpointError, convert

# Folders as they are found: (checkpoint, how it is written).
V5 = {"rope_theta": None, "rope_scaling": None}  # transformers 5 has both in rope_parameters
NO_WINDOW = {"architecture": "MistralForCausalLM", "model_type": "mistral", "sliding_window": None}
QWEN2 = {"architecture": "Qwen2ForCausalLM", "model_type": "qwen2", "attention_bias": None}
FOLDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "shards of bfloat16": ("grouped_query", {"dtype": "BF16", "shards": 3}),
    "float16, tied": ("tied", {"dtype": "F16"}),
    "transformers 5, theta": ("rope_theta", V5 | {"rope_parameters": {"rope_theta": 500000.0}}),
    "transformers 5, yarn": (
        "rope_yarn", V5 | {"rope_parameters": YARN_TUNED | {"rope_theta": 1e6}}
    ),
    "transformers 5, llama3": (
        "rope_llama3", V5 | {"rope_parameters": LLAMA3 | {"rope_theta": 1e5}}
    ),
    "yarn, two scales": ("rope_yarn", {"rope_scaling": YARN | {"mscale": 2, "mscale_all_dim": 1}}),
    "Mistral": ("wide_heads", NO_WINDOW),
    "Qwen 2": ("grouped_query", QWEN2),
}  # fmt: skip


@pytest.mark.parametrize(("name", "format"), QUESTIONS)
def test_logits_agree(hugging_face, tmp_path, name, format):
    """On a random LLaMA of any kind, in any format, logits are those of `LlamaForCausalLM`."""
    checkpoint = CHECKPOINTS[name]
    tokens = checkpoint.tokens()
    ours = engine_logits(export(checkpoint, tmp_path / "model.gguf", format), tokens)
    theirs = hugging_face.logits(checkpoint, rounded(checkpoint.weights(), format), tokens)
    demand_near(ours, theirs, limit(checkpoint, hugging_face.PEER, format))


@pytest.mark.parametrize(("name", "how"), FOLDERS.values(), ids=FOLDERS)
def test_converted_folders_agree(hugging_face, tmp_path, name, how):
    """The logits of a converted folder are those of transformers, which reads the folder itself."""
    checkpoint = CHECKPOINTS[name]
    folder = write_folder(checkpoint, tmp_path / "model", **({"model_type": "llama"} | how))
    if how.get("architecture") == "Qwen2ForCausalLM":
        weights = replace(checkpoint, attention_bias=True).weights()
        write_weights(folder, {n: w for n, w in weights.items() if not n.endswith("o_proj.bias")})
    assert_logits_agree(hugging_face, folder, checkpoint.tokens())


def test_pickled_checkpoints_agree(hugging_face, tmp_path):
    """PyTorch's own files are read, too; objects in them that are no weights are not."""
    import torch

    checkpoint = CHECKPOINTS["grouped_query"]
    folder = write_folder(checkpoint, tmp_path / "model", model_type="llama")
    (folder / "model.safetensors").unlink()
    hugging_face.save_pickle(checkpoint.weights(), folder / "pytorch_model.bin")
    assert_logits_agree(hugging_face, folder, checkpoint.tokens())
    torch.save({"model.norm.weight": Path("a class")}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"it holds pathlib\.PosixPath, which is neither"):
        convert(folder, tmp_path / "model.gguf")


@pytest.mark.parametrize("kind", ["pieces", "bytes"])
def test_folders_saved_by_transformers_agree(hugging_face, tmp_path, kind):
    """For a model and a tokenizer written by transformers, tokens and logits agree."""
    file = words(67) if kind == "pieces" else small() | {"post_processor": TEMPLATE}
    size = len(file["model"]["vocab"]) + (2 if kind == "bytes" else 0)
    write_json(tmp_path / "tokenizer.json", file)
    names = ("<s>", "</s>") if kind == "pieces" else ("<|begin|>", "<|stop|>")
    folder = tmp_path / "model"
    tokenizer = hugging_face.save_folder(
        replace(CHECKPOINTS["rope_llama3"], vocab_size=size), folder, tmp_path / "tokenizer.json",
        *names,
    )  # fmt: skip
    texts = ["hello hell", "w5 w6 w7", " <|begin|>a<|stop|>\n", "été 日本"]
    with Engine.load(assert_logits_agree(hugging_face, folder, [1, 5, 9, 4, 7])) as engine:
        for text in texts:
            ids = engine.tokenizer.encode(text, add_special=kind == "bytes", parse_special=True)
            assert ids == tokenizer(text).input_ids, text
        assert engine.tokenizer.eog_ids == {tokenizer.eos_token_id, 2, 3}


def assert_logits_agree(hugging_face: ModuleType, folder: Path, tokens: list[int]) -> Path:
    """The logits of the converted file, which is returned, are transformers' of the folder."""
    path = folder.with_suffix(".gguf")
    convert(folder, path, "F32")
    demand_near(engine_logits(path, tokens), hugging_face.logits_of_folder(folder, tokens), EXACT)
    return path


@pytest.mark.usefixtures("hugging_face")
def test_transformers_works_beside_our_kernels(tmp_path):
    """transformers probes for a package called `kernels`, finds Assay's, and goes without."""
    program = (
        "import kernels.table, transformers\n"
        "from transformers.utils import import_utils\n"
        "assert not import_utils.is_kernels_available()\n"
        "config = transformers.LlamaConfig(vocab_size=5, hidden_size=4, intermediate_size=4,"
        " num_hidden_layers=1, num_attention_heads=2)\n"
        "print(transformers.LlamaForCausalLM(config).config.model_type)"
    )
    assert output_of(program, cwd=tmp_path) == "llama\n"
