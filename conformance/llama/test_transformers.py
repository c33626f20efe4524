"""The engine against Hugging Face transformers, asked live; without it these tests are skipped."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from conformance.llama.peers.checkpoint import CHECKPOINTS, formats, rounded
from conformance.llama.peers.compare import Gap, engine_logits, limit
from conformance.llama.peers.export import export

QUESTIONS = [(name, f) for name, checkpoint in CHECKPOINTS.items() for f in formats(checkpoint)]


@pytest.fixture(name="hugging_face", scope="module")
def _hugging_face() -> ModuleType:
    for package in ("torch", "transformers"):
        reason = f"{package} is not installed: make test-transformers or make test-peers"
        pytest.importorskip(package, reason=reason)
    from conformance.llama.peers import hugging_face

    return hugging_face


@pytest.mark.parametrize(("name", "format"), QUESTIONS)
def test_logits_agree(hugging_face: ModuleType, tmp_path: Path, name: str, format: str) -> None:
    """On a random LLaMA of any kind, in any format, logits are those of `LlamaForCausalLM`."""
    checkpoint = CHECKPOINTS[name]
    tokens = checkpoint.tokens()
    ours = engine_logits(export(checkpoint, tmp_path / "model.gguf", format), tokens)
    theirs = hugging_face.logits(checkpoint, rounded(checkpoint.weights(), format), tokens)
    gap = Gap.between(ours, theirs)
    assert gap.within(limit(checkpoint, hugging_face.PEER, format)), gap


@pytest.mark.usefixtures("hugging_face")
def test_transformers_works_beside_our_kernels(tmp_path: Path) -> None:
    """transformers probes for a package called `kernels`, finds Assay's, and goes without."""
    program = (
        "import kernels.table, transformers\n"
        "from transformers.utils import import_utils\n"
        "assert not import_utils.is_kernels_available()\n"
        "config = transformers.LlamaConfig(vocab_size=5, hidden_size=4, intermediate_size=4,"
        " num_hidden_layers=1, num_attention_heads=2)\n"
        "print(transformers.LlamaForCausalLM(config).config.model_type)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "llama\n"), done.stderr
