"""llama.cpp, through llama-cpp-python: opens the very file that the engine opens."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from conformance.llama.peers.compare import log_probabilities
from conformance.llama.peers.stories import HELD_OUT, held_out_text
from conformance.support.tokenizer.small_vocabularies import told
from reference.op import Array

PEER = "llama.cpp"
VERSIONS = {"llama-cpp-python": llama_cpp.__version__}
CACHES = {"F32": llama_cpp.GGML_TYPE_F32, "F16": llama_cpp.GGML_TYPE_F16}


def load(path: Path, kv_format: str = "F32", context: int = 256) -> llama_cpp.Llama:
    """The model with logits for every token and no fused attention, which rounds otherwise than
    the formula; in one thread, since two wait for each other long where cores are busy."""
    return llama_cpp.Llama(
        str(path),
        n_ctx=context,
        n_threads=1,
        n_threads_batch=1,
        logits_all=True,
        flash_attn=False,
        type_k=CACHES[kv_format],
        type_v=CACHES[kv_format],
        verbose=False,
    )


def logits(path: Path, tokens: Sequence[int], kv_format: str = "F32") -> Array:
    """The logits after every token, float32 [tokens, vocab]."""
    with closing(load(path, kv_format)) as llama:
        llama.eval(list(tokens))
        return np.array(llama.scores[: len(tokens)], np.float32)


def mtp_logits(path: Path, hidden: Array, following: Sequence[int]) -> Array:
    """The logits of a model's own MTP block, float32 [vocab], behind tokens
    `following` those whose `hidden` states float32 [tokens, hidden] its head reads."""
    count = len(hidden)
    options = llama_cpp.llama_model_default_params()
    options.load_mtp, options.use_mmap = True, False
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    room = llama_cpp.llama_context_default_params()
    room.ctx_type = 1  # LLAMA_CONTEXT_TYPE_MTP
    room.n_ctx = room.n_batch = room.n_ubatch = 64
    room.n_threads = room.n_threads_batch = 1
    room.type_k = room.type_v = llama_cpp.GGML_TYPE_F32
    room.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, room)
    batch = llama_cpp.llama_batch_init(count, 0, 1)
    rows = np.ascontiguousarray(hidden, np.float32)
    batch.embd = rows.ctypes.data_as(type(batch.embd))
    batch.n_tokens = count
    for i, token in enumerate(following):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, i == count - 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    try:
        if code := llama_cpp.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode gave {code}")
        found = llama_cpp.llama_get_logits_ith(context, count - 1)
        vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        return np.array(np.ctypeslib.as_array(found, (vocab,)), np.float32)
    finally:
        batch.embd = type(batch.embd)()  # NumPy's, not the batch's
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)


def words(path: Path) -> Callable[[str], list[int]]:
    """What turns a text into ids by a file's vocabulary alone."""
    llama = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return lambda text: llama.tokenize(text.encode(), add_bos=False, special=False)


def vocabulary(path: Path) -> dict[str, Any]:
    """What it makes of a vocabulary, as `told` of small_vocabularies.py has it."""
    llama = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    vocab = llama_cpp.llama_model_get_vocab(llama.model)

    def piece(token: int, special: bool) -> bytes:
        room = ctypes.create_string_buffer(1024)
        size = llama_cpp.llama_token_to_piece(vocab, token, room, len(room), 0, special)
        return room.raw[:size]

    def encode(text: str, special: bool) -> list[int]:
        return llama.tokenize(text.encode(), add_bos=special, special=special)

    return told(
        llama.n_vocab(), encode, piece, lambda token: llama_cpp.llama_vocab_is_eog(vocab, token)
    )


def greedy(llama: llama_cpp.Llama, prompt: str, count: int) -> tuple[list[int], list[int], float]:
    """The prompt's tokens, the `count` likeliest to follow one after the other, and the least lead
    that any of those had over the next in logits. As with --ignore-eos, no token ends the text."""
    vocab = llama_cpp.llama_model_get_vocab(llama.model)
    ends = [i for i in range(llama.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocab, i)]
    tokens = llama.tokenize(prompt.encode(), add_bos=True, special=True)
    told: list[int] = []
    lead = np.inf
    llama.reset()
    llama.eval(tokens)
    while len(told) < count:
        row = llama.scores[llama.n_tokens - 1].copy()
        row[ends] = -np.inf
        second, first = np.argsort(row)[-2:]
        lead = min(lead, float(row[first] - row[second]))
        told.append(int(first))
        llama.eval(told[-1:])
    return tokens, told, lead


def losses(llama: llama_cpp.Llama) -> list[float]:
    """Mean -ln p in nats of the tokens that count of each chunk of the held-out stories, as
    llama.cpp's perplexity tool has it: the text is tokenised whole, special tokens left as text."""
    tokens = llama.tokenize(HELD_OUT.read_bytes(), add_bos=True, special=False)
    found = []
    for passage in held_out_text(tokens, llama.token_bos()).passages():
        llama.reset()
        llama.eval(list(passage.tokens))
        rows = llama.scores[passage.first : len(passage.tokens) - 1].astype(np.float64)
        costs = -log_probabilities(rows)
        found.append(float(costs[np.arange(len(costs)), passage.scored_tokens].mean()))
    return found
