"""llama.cpp through llama-cpp-python's low-level API, configured as llama-bench does."""

import ctypes
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import llama_cpp
import numpy as np
from llama_cpp._ggml import libggml

from bench.contenders.contender import Array, Setup

CACHES = {
    "F32": llama_cpp.GGML_TYPE_F32,
    "F16": llama_cpp.GGML_TYPE_F16,
    "Q8_0": llama_cpp.GGML_TYPE_Q8_0,
    "Q4_0": llama_cpp.GGML_TYPE_Q4_0,
}
CPU = 0  # ggml's GGML_BACKEND_DEVICE_TYPE_CPU
POLL = 50  # llama-bench's polling level of idle threads, of 100


class LlamaCpp:
    """A model mapped from its file, on the CPU, with llama.cpp's default for flash attention."""

    exact = False
    repacked: ClassVar[bool] = True

    def __init__(self, model: Path, setup: Setup) -> None:
        self._setup = setup
        self._context, self._n_sequences, self._held = None, 0, 0
        if setup.kv_format not in CACHES:
            raise ValueError(f"kv_format is {setup.kv_format!r}: want {', '.join(CACHES)}")
        logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # logging takes time
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        if not self.repacked:
            params.use_extra_bufts = False
        self._model = llama_cpp.llama_model_load_from_file(str(model).encode(), params)
        if not self._model:
            raise OSError(f"{model}: llama.cpp cannot load it")
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab = llama_cpp.llama_vocab_n_tokens(vocab)
        self._batch = Batch(setup.batch)
        self._pool = ThreadPool(setup.threads)
        self._new_context(1)

    def _new_context(self, n_sequences: int) -> None:
        """Create a context for a fixed number of sequences, each with its share of the cells."""
        setup, params = self._setup, llama_cpp.llama_context_default_params()
        self._free_context()
        params.n_ctx, params.n_seq_max = setup.context, n_sequences
        params.n_batch = params.n_ubatch = setup.batch
        params.n_threads = params.n_threads_batch = setup.threads
        params.type_k = params.type_v = CACHES[setup.kv_format]
        params.offload_kqv = params.op_offload = False
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {setup.context} tokens")
        self._pool.attach(self._context)
        self._n_sequences = n_sequences

    def _free_context(self) -> None:
        if self._context:
            llama_cpp.llama_free(self._context)
        self._context, self._held = None, 0

    def hold(self, sequences: int, length: int) -> int:
        if sequences != self._n_sequences:
            self._new_context(sequences)
        memory = llama_cpp.llama_get_memory(self._context)
        if not length:
            llama_cpp.llama_memory_clear(memory, False)
        else:
            llama_cpp.llama_memory_seq_rm(memory, 0, length, -1)
        self._held = min(self._held, length)
        return self._held

    def repeat(self, length: int) -> None:
        """Fill sequence 0 with so many tokens by repeating the keys and values that it has:
        contents do not affect speed, and reading a long text takes minutes."""
        size = llama_cpp.llama_state_seq_get_size(self._context, 0)
        state = np.empty(size, np.uint8)
        place = ctypes.POINTER(ctypes.c_uint8)
        llama_cpp.llama_state_seq_get_data(self._context, state.ctypes.data_as(place), size, 0)
        longer = repeated(state, llama_cpp.llama_model_n_layer(self._model), length)
        taken = llama_cpp.llama_state_seq_set_data(
            self._context, longer.ctypes.data_as(place), len(longer), 0
        )
        if taken != len(longer):
            raise RuntimeError(f"llama.cpp does not take a state of {length} cells")
        self._held = length

    def evaluate(self, tokens: Array, start: int) -> Array:
        n_sequences, n = tokens.shape
        flat = tokens.ravel()
        positions = np.tile(np.arange(start, start + n, dtype=np.int32), n_sequences)
        sequences = np.repeat(np.arange(n_sequences, dtype=np.int32), n)
        last = np.tile(np.arange(n) == n - 1, n_sequences)
        logits = np.empty((n_sequences, self.vocab), np.float32)
        done = 0
        for first in range(0, len(flat), self._setup.batch):
            part = slice(first, first + self._setup.batch)
            batch = self._batch.set(flat[part], positions[part], sequences[part], last[part])
            if status := llama_cpp.llama_decode(self._context, batch):
                raise RuntimeError(f"llama_decode of {batch.n_tokens} tokens gave {status}")
            llama_cpp.llama_synchronize(self._context)
            for row in np.flatnonzero(last[part]).tolist():
                values = llama_cpp.llama_get_logits_ith(self._context, row)
                ctypes.memmove(logits[done].ctypes.data, values, logits[done].nbytes)
                done += 1
        if n_sequences == 1:
            self._held = start + n
        return logits

    def first_token(self, tokens: Sequence[int]) -> int:
        return int(np.argmax(self.evaluate(np.array([tokens], np.int32), 0)[-1]))

    @property
    def about(self) -> dict[str, str]:
        return {
            "llama-cpp-python": llama_cpp.__version__,
            "system": llama_cpp.llama_print_system_info().decode().strip(),
            "threads": self._pool.about,
            "weights": "mapped from the file: a load does not read what it need not repack",
        }

    def close(self) -> None:
        self._free_context()
        self._pool.close()
        llama_cpp.llama_model_free(self._model)


class LlamaCppMapped(LlamaCpp):
    """The same with all weights left in the mapped file (llama-bench's --no-repack), which the
    system may evict and read again."""

    repacked = False


def repeated(state: Array, blocks: int, length: int) -> Array:
    """A sequence's state, as llama_state_seq_get_data returns it, extended to so many cells by
    repeating its own at positions from 0; RuntimeError for an unknown layout."""

    def word(at: int, dtype: type = np.int32) -> int:
        return int(np.frombuffer(state, dtype, 1, at)[0])

    held = word(12)  # after a magic number, the sequence, and the number of streams
    for entry in (12, 24):  # bytes of a cell's position and sequences, and of optional fields
        at = 16 + held * entry
        if at + 8 <= len(state) and (word(at), word(at + 4)) == (0, blocks):
            break
    else:
        raise RuntimeError("llama.cpp keeps its state in a layout that is not known here")
    cells = np.resize(state[16:at].reshape(held, entry), (length, entry))
    cells[:, :4] = np.arange(length, dtype=np.int32)[:, None].view(np.uint8)
    pieces = [state[:12], np.array([length], np.int32).view(np.uint8), cells, state[at : at + 8]]
    at += 8
    for _ in range(2 * blocks):  # keys of all layers, then values: type, bytes of a row, rows
        row = word(at + 4, np.uint64)
        begin, at = at + 12, at + 12 + held * row
        pieces.append(state[begin - 12 : begin])
        pieces.append(np.resize(state[begin:at].reshape(held, row), (length, row)))
    if at != len(state):
        raise RuntimeError("llama.cpp keeps its state in a layout that is not known here")
    return np.concatenate([piece.ravel() for piece in pieces])


class Batch:
    """A llama_batch over our arrays, so that describing a step takes microseconds."""

    def __init__(self, size: int) -> None:
        self._tokens, self._positions, self._sequences = np.zeros((3, size), np.int32)
        self._wanted = np.zeros(size, np.int8)
        self._counts = np.ones(size, np.int32)  # of sequences, for each token
        self._pointers = self._sequences.ctypes.data + np.arange(size, dtype=np.uint64) * 4
        arrays: dict[str, Array] = {
            "token": self._tokens,
            "pos": self._positions,
            "n_seq_id": self._counts,
            "seq_id": self._pointers,
            "logits": self._wanted,
        }
        fields = dict(llama_cpp.llama_batch._fields_)
        self._batch = llama_cpp.llama_batch(
            **{name: ctypes.cast(a.ctypes.data, fields[name]) for name, a in arrays.items()}
        )

    def set(self, tokens: Array, positions: Array, sequences: Array, wanted: Array) -> Any:
        """The batch of these tokens, valid until the next call."""
        n = self._batch.n_tokens = len(tokens)
        self._tokens[:n], self._positions[:n] = tokens, positions
        self._sequences[:n], self._wanted[:n] = sequences, wanted
        return self._batch


class _Params(ctypes.Structure):
    """ggml.h's ggml_threadpool_params."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * 512),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


class ThreadPool:
    """Threads that llama.cpp keeps between steps, as in llama-bench.

    llama-cpp-python does not wrap them. Without a pool, every step starts its threads anew.
    """

    def __init__(self, n_threads: int) -> None:
        params = _Params()
        libggml.ggml_threadpool_params_init(ctypes.byref(params), n_threads)
        if params.n_threads != n_threads:
            raise RuntimeError("this llama.cpp lays ggml_threadpool_params out in another way")
        params.poll = POLL
        new = _cpu_function("ggml_threadpool_new", ctypes.c_void_p)
        self._free = _cpu_function("ggml_threadpool_free", None)
        self._pool = ctypes.c_void_p(new(ctypes.byref(params)))
        if not self._pool:
            raise RuntimeError(f"llama.cpp cannot make a pool of {n_threads} threads")
        self.about = f"{n_threads} in a pool, poll {POLL}"

    def attach(self, context: Any) -> None:
        llama_cpp.llama_cpp._lib.llama_attach_threadpool(ctypes.c_void_p(context), self._pool, None)

    def close(self) -> None:
        self._free(self._pool)


def _cpu_function(name: str, result: Any) -> Callable[..., Any]:
    """A function of ggml's CPU backend, which may be a separate library."""
    libggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    libggml.ggml_backend_dev_backend_reg.restype = ctypes.c_void_p
    libggml.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
    device = ctypes.c_void_p(libggml.ggml_backend_dev_by_type(CPU))
    backend = ctypes.c_void_p(libggml.ggml_backend_dev_backend_reg(device))
    address = libggml.ggml_backend_reg_get_proc_address(backend, name.encode())
    if not address:
        raise RuntimeError(f"llama.cpp's CPU backend has no {name}")
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p)(address)
