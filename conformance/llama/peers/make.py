"""`python -m conformance.llama.peers.make`: ask the peers again, and keep what they answer.

Wants both of them: docs/peers.md says how they are built.
"""

import platform
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from conformance.llama.peers import goldens, hugging_face, llama_cpp_python
from conformance.llama.peers.checkpoint import CHECKPOINTS, Checkpoint, formats, rounded
from conformance.llama.peers.export import export
from conformance.llama.peers.quantisers import errors, mixes
from conformance.llama.peers.skeletons import SKELETONS
from conformance.llama.peers.stories import PROMPTS, STORY, TOLD
from conformance.support.tokenizer.small_vocabularies import SMALL
from conformance.support.tokenizer.vocabularies import PREFIX, VOCABS, write_vocabulary
from conformance.support.tokenizer.words import digest, vocabulary
from data.golden import sha256
from engine.embedded import embedded_models
from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from reference.op import Array


def main() -> None:
    goldens.FOLDER.mkdir(exist_ok=True)
    entries: dict[str, Any] = {
        "peers": hugging_face.VERSIONS | llama_cpp_python.VERSIONS,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "llama.cpp": llama_cpp.llama_print_system_info().decode(),
        "checkpoints": {
            name: goldens.save(name, checkpoint, answers(checkpoint))
            for name, checkpoint in CHECKPOINTS.items()
        },
        "told": {},
    }
    if story := embedded_models().get(STORY):
        entries["told"][STORY] = greedy_and_losses(story)
    else:
        print(f"{STORY} is not among the embedded models: nothing is told")
    goldens.save_json("index", entries)
    goldens.save_json("mixes", {name: mixes(skeleton) for name, skeleton in SKELETONS.items()})
    goldens.save_json("errors", errors())
    goldens.save_json("words", pre_tokenizer_digests())
    goldens.save_json("vocabularies", vocabularies())


def pre_tokenizer_digests() -> dict[str, str]:
    """Digests of llama.cpp's ids of the texts of words.py, by pre-tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: digest(
                llama_cpp_python.words(write_vocabulary(Path(folder) / "v", vocabulary(name)))
            )
            for name in PRE_TOKENIZERS
        }


def vocabularies() -> dict[str, Any]:
    """llama.cpp's results for the small vocabularies, and for those real ones that are here."""
    with tempfile.TemporaryDirectory() as folder:
        files = {
            name: write_vocabulary(Path(folder) / f"{name}.gguf", metadata)
            for name, metadata in SMALL.items()
        }
        files |= {
            path.stem.removeprefix(PREFIX): path for path in sorted(VOCABS.glob(f"{PREFIX}*.gguf"))
        }
        return {name: llama_cpp_python.vocabulary(path) for name, path in files.items()}


def answers(checkpoint: Checkpoint) -> dict[str, Array]:
    """Every peer's logits in every format."""
    tokens, weights = checkpoint.tokens(), checkpoint.weights()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for form in formats(checkpoint):
            path = export(checkpoint, Path(folder) / f"{form}.gguf", form)
            found[f"{hugging_face.PEER}.{form}"] = hugging_face.logits(
                checkpoint, rounded(weights, form), tokens
            )
            found[f"{llama_cpp_python.PEER}.{form}"] = llama_cpp_python.logits(path, tokens)
    return found


def greedy_and_losses(path: Path) -> dict[str, Any]:
    """llama.cpp's greedy text of a model with an F16 cache, and the held-out stories' losses."""
    stories = []
    with closing(llama_cpp_python.load(path, "F16", context=0)) as llama:
        for prompt in PROMPTS:
            tokens, continuation, lead = llama_cpp_python.greedy(llama, prompt, TOLD)
            stories.append(
                {"prompt": prompt, "tokens": tokens, "continuation": continuation, "lead": lead}
            )
        losses = llama_cpp_python.losses(llama)
    return {"sha256": sha256(path), "stories": stories, "costs": losses}


if __name__ == "__main__":
    main()
