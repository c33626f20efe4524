"""Load a model: from a GGUF file and options to an executable step."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import numpy as np

from engine.cache.cells import Cells
from engine.cache.eviction import Eviction
from engine.cache.merged import Merged
from engine.cache.method import CacheMethod
from engine.cache.pages import Pages
from engine.cache.sparse_prefill import SparsePrefill
from engine.cache.states import States
from engine.cache.streaming import Streaming
from engine.cache.two_bits import TwoBits
from engine.checks import check_memory
from engine.compile.build import Built, build, build_mtp
from engine.compile.compiler import Compiler
from engine.compile.executable import Executable, stepped
from engine.config import ModelConfig
from engine.gguf.file import GGUFFile
from engine.model_info import model_info
from engine.options import Options
from engine.passes import Pass
from engine.passes.choose_pages import choosing_pages
from engine.passes.count import count_predicted
from engine.passes.keep_hidden import keep_hidden
from engine.passes.merge import merging
from engine.passes.pack import packing
from engine.passes.receive import receiving
from engine.passes.sparse_prompts import sparse_prompts
from engine.passes.split_heads import split_heads
from engine.placement.applied import placed
from engine.policies.duo_attention import DuoAttention
from engine.policies.minference import MInference
from engine.policies.minicache import MiniCache
from engine.policies.policy import Policy
from engine.policies.quest import Quest
from engine.sparsity import dense_where_faster
from kernels.background import Background
from kernels.certificates import Store
from kernels.compiled import compile_apart
from kernels.cpu.runtime.team import Team
from kernels.cuda.runtime.current import current
from kernels.cuda.runtime.device import Device
from kernels.dispatch import Dispatcher

PROBE_TOKENS = 32  # tokens for measuring predicted sparsity at load


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model's parts: the graph as `built`, its `executable`, and the executables of the
    multi-token-prediction blocks, if requested."""

    config: ModelConfig
    device: Device | None
    limits: Mapping[str, int]
    cells: Cells
    dispatcher: Dispatcher
    team: Team
    built: Built
    executable: Executable
    mtp_blocks: Sequence[Executable]
    notes: Sequence[str]


def load(file: GGUFFile, options: Options, samplers: Sequence[str], resources: ExitStack) -> Loaded:
    """Check a file, build its graph, and compile it for the devices of the options.

    Resources that live as long as the model are entered into `resources`. Kernels for the ops of
    `samplers` are certified along with the model's own.

    Raises `ModelError` for a file that is incomplete, inconsistent or too large.
    """
    device = current() if options.device == "cuda" else None
    info = model_info(file, options)
    config, notes = info.config, list(info.notes)
    context = options.context or min(config.context, 4096)
    if sparse := options.prompt_attention:  # a chunk and other decode tokens in a step
        options = replace(options, batch=max(options.batch, sparse.stretch + options.sequences - 1))
    check_memory(config, options, context)
    limits = {
        "tokens": min(options.batch, context),
        "outputs": min(options.outputs, options.batch, context),
    }
    states = States(options.sequences, options.states) if config.states else None
    method = _cache_method(options, context, config.blocks, limits["tokens"])
    cells = Cells(context, options.sequences, config.window, states, method)
    dispatcher = Dispatcher(
        Store(), options.strict, options.variant, options.numerics,
        {"tokens": max(limits.values()), "held": context, "kept": context}, options.compiles_apart,
    )  # fmt: skip
    if options.compiles_apart:
        compile_apart()  # the thread pool's functions
    compiler = Compiler(file, info, options, dispatcher, device, samplers, resources)

    def built(passes: Sequence[Pass]) -> Built:
        own = [*passes]
        if isinstance(method, TwoBits):
            own.append(packing(method))
        if isinstance(method, Merged):
            own.append(merging(method))
        return build(file, info, config, cells, limits, options, own)

    if options.vram_budget:
        config, found = placed(config, file, options, context, device)
        notes += found
    split = config.sparsity and config.sparsity.apart
    if config.sparsity and options.sparse == "auto" and not (options.ram_budget or split):
        config, found = dense_where_faster(config, file, dict.fromkeys(config.sparsity.ranks, 0.0))
        notes += found
        if config.sparsity and not device:  # SKIP_OVERHEAD and GATHER_COST are the CPU's
            shares = _predicted_shares(built([count_predicted]), config, compiler, cells, limits)
            config, found = dense_where_faster(config, file, shares)
            notes += found
    keeping = [keep_hidden] if options.mtp else []
    reading = _method_passes(options, context, method)
    whole = built([*options.passes, *reading, *keeping])
    mtp_blocks = build_mtp(file, info, cells, options, whole) if options.mtp else []
    ready, ahead = compiler.compile(whole, mtp_blocks)
    if isinstance(method, Eviction):
        method.compile(whole.graph, whole.memory, compiler)
    if isinstance(method, Merged):
        method.on_compiled(whole.caches)
    if options.background:
        resources.enter_context(closing(Background(dispatcher.serving)))
    notes = [*compiler.notes, *notes]
    return Loaded(
        config, device, limits, cells, dispatcher, compiler.team, whole, ready, ahead, notes
    )


def _cache_method(options: Options, context: int, blocks: int, tokens: int) -> CacheMethod:
    """The KV cache method of these options, for steps of at most `tokens` tokens."""
    sequences = options.sequences
    if options.packs_kv:
        return TwoBits(context, sequences, tokens, options.kv_residual)
    match options.kv_policy or options.prompt_attention:
        case Quest() as policy:
            return Pages(policy, sequences, context)
        case DuoAttention() as policy:
            return Streaming(policy, context, sequences, tokens)
        case MiniCache() as policy:
            return Merged(policy, policy.first(blocks), context, sequences)
        case Policy() as policy:
            return Eviction(policy, sequences, blocks)
        case MInference() as policy:
            return SparsePrefill(policy, sequences)
    return CacheMethod()


def _method_passes(options: Options, context: int, method: CacheMethod) -> list[Pass]:
    """The graph passes of the KV cache method and of sparse prefill attention."""
    if isinstance(method, Streaming):
        return [split_heads(method)]
    match options.kv_policy or options.prompt_attention:
        case Quest() as policy:
            return [choosing_pages(policy, options.sequences, context)]
        case Policy() as policy:
            return [receiving(policy, options.sequences, context)]
        case MInference() as policy:
            return [sparse_prompts(policy, context)]
    return []


def _predicted_shares(
    built: Built, config: ModelConfig, compiler: Compiler, cells: Cells, limits: Mapping[str, int]
) -> dict[int, float]:
    """Share of its neurons that each block's predictor activates, measured on random tokens."""
    assert config.sparsity
    ready, count = compiler.trial(built), min(PROBE_TOKENS, cells.capacity)
    tokens = np.random.default_rng(0).integers(0, config.vocab, count).tolist()
    for at in range(0, count, limits["tokens"]):
        part = range(at, min(at + limits["tokens"], count))
        chunk = tokens[at : part.stop]
        with stepped(ready, cells, chunk, part, [(0,)] * len(part), []):
            pass
    cells.clear()
    counts = {i: built.memory[f"blk.{i}.predicted"] for i in config.sparsity.ranks}
    return {i: float(own.mean()) / count for i, own in counts.items()}
