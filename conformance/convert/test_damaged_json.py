"""`assay convert` on folders in whose JSON files any one value is replaced or removed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.llama.peers.checkpoint import CHECKPOINTS, SPECIAL
from conformance.llama.peers.folder import write_folder, write_json
from conformance.support.tokenizer.tokenizer_files import NFC, TEMPLATE, small
from engine.convert import convert
from engine.gguf.file import GGUFFile

OTHERS = (None, True, -1, 2**40, "x", [], [1], ["a"], {}, {"type": "x"})
GONE = object()
Place = tuple[str | int, ...]
SHARED: dict[str, Any] = {
    "generation_config.json": {"eos_token_id": [1, SPECIAL]},
    "added_tokens.json": {"<tool>": 66},
    "tokenizer_config.json": {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "add_bos_token": True,
        "chat_template": [{"name": "default", "template": "one"}],
        "added_tokens_decoder": {"5": {"content": "<user>", "special": True}},
    },
    "model.safetensors.index.json": {"weight_map": {"lm_head.weight": "model.safetensors"}},
}


def folder_of(folder: Path, byte_level: bool) -> Path:
    """A folder with every file that is read, and the most complicated RoPE configuration."""
    checkpoint = replace(CHECKPOINTS["rope_yarn_tuned"], num_hidden_layers=1)
    if byte_level:
        write_folder(replace(checkpoint, vocab_size=260), folder)
        file = small() | {"post_processor": TEMPLATE, "normalizer": NFC}
        write_json(folder / "tokenizer.json", file)
    else:
        write_folder(checkpoint, folder)
    for name, value in SHARED.items():
        write_json(folder / name, value)
    return folder


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Every value within a value; of long lists and tables the first few."""
    yield here
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in list(inner)[:12]:
        if isinstance(part, dict | list):
            yield from places(part, (*here, key))
        else:
            yield (*here, key)


def damaged(value: Any, place: Place, other: Any) -> Any:
    """A copy with one value replaced, or removed."""
    if not place:
        return other
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    if other is GONE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = other
    return copy


def error_line(folder: Path, out: Path) -> str | None:
    """The error, or None if a file was written that can be opened; the file is removed again."""
    try:
        convert(folder, out, "F32")
    except ValueError as error:
        return str(error)
    with GGUFFile(out) as file:
        assert file.tensors
    out.unlink()
    return None


@pytest.mark.parametrize("byte_level", [True, False])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", *SHARED])
def test_damaged_json_gives_a_model_or_one_line(tmp_path, name, byte_level):
    """The result is a file that can be opened, or a line that names a file."""
    folder, out = folder_of(tmp_path / "model", byte_level), tmp_path / "model.gguf"
    assert error_line(folder, out) is None
    original = json.loads((folder / name).read_bytes())
    for place in places(original):
        for other in (*OTHERS, *([GONE] if place else [])):
            write_json(folder / name, damaged(original, place, other))
            if line := error_line(folder, out):
                assert line.startswith(str(folder)), (place, other)
                assert "\n" not in line, (place, other)
            assert list(tmp_path.iterdir()) == [folder], (place, other)
