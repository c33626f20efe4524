"""The mixer of each block: attention, full, windowed or latent, or a recurrent state."""

from engine.config import Latent
from engine.errors import ModelError
from engine.metadata.architectures import Traits
from engine.metadata.keys import Keys
from engine.recurrent import Ssm

MOST_BLOCKS = 2**16  # flags of blocks with a window


def windowed_of(keys: Keys, every: int, blocks: int) -> frozenset[int]:
    """The blocks with a window: by a list of flags, or by Traits.windows."""
    if blocks > MOST_BLOCKS:
        raise ModelError(f"{keys.full('block_count')} is {blocks}: at most {MOST_BLOCKS} run")
    listed = keys.flags("attention.sliding_window_pattern", blocks)
    if listed is not None:
        return frozenset(i for i, has in enumerate(listed) if has)
    every = keys.count("attention.sliding_window_pattern", every, least=0)
    return frozenset(i for i in range(blocks) if not every or (i + 1) % every)


def latent_of(keys: Keys, traits: Traits, head_dim: int, part: int) -> Latent:
    """Sizes of latent attention in files with kv_b split into k_b and v_b, or as one tensor, as
    llama.cpp writes MiniCPM 3 and wrote DeepSeek until April 2025: then key lengths are per head.
    Values are a `part` of the hidden size where the file does not give their length."""
    joined = keys.full("attention.key_length_mla") not in keys.metadata
    apart = "" if joined else "_mla"
    found = Latent(
        q_rank=keys.count("attention.q_lora_rank", 0, least=0),
        kv_rank=keys.count("attention.kv_lora_rank"),
        key=head_dim if joined else keys.count("attention.key_length_mla"),
        value=keys.count(f"attention.value_length{apart}", part if joined else None),
        joined=joined,
        halves=traits.halves,
        eps=traits.latent_eps or keys.real(*traits.norm_eps),
    )
    turned = keys.count("rope.dimension_count") if joined else head_dim - found.kv_rank
    other = f"dimension_count of {turned}" if joined else f"key_length_mla of {found.key}"
    if found.kv_rank % 2:  # rope rotates pairs of the elements after it
        name = keys.full("attention.kv_lora_rank")
        raise ModelError(f"{name} is {found.kv_rank}: want an even number")
    if not 0 < turned < found.key:
        raise ModelError(
            f"{keys.prefix}.attention: a kv_lora_rank of {found.kv_rank}, a key_length of"
            f" {head_dim} and a {other} do not fit one another"
        )
    return found


def recurrent_of(keys: Keys, traits: Traits, blocks: int, mtp_blocks: int) -> frozenset[int]:
    """Blocks with recurrent states."""
    if traits.ssm:
        return _every(keys, blocks)
    return (
        _delta_nets(keys, blocks, mtp_blocks)
        if traits.delta
        else _without_heads(keys, traits, blocks)
    )


def _delta_nets(keys: Keys, blocks: int, mtp_blocks: int) -> frozenset[int]:
    """By a list of flags for the blocks, or all but every so many-th."""
    every = keys.count("full_attention_interval", 4)
    listed = keys.flags("attention.recurrent_layers", blocks + mtp_blocks)
    if listed is not None:
        return frozenset(i for i in range(blocks) if listed[i])
    return frozenset(i for i in _every(keys, blocks) if (i + 1) % every)


def _without_heads(keys: Keys, traits: Traits, blocks: int) -> frozenset[int]:
    """Blocks without KV heads, in families where those do not attend."""
    key = "attention.head_count_kv"
    heads = keys.metadata.get(keys.full(key))
    if not (traits.shortconv or traits.hybrid) or not isinstance(heads, list):
        return frozenset()
    if len(heads) != blocks:
        raise ModelError(f"{keys.full(key)} has {len(heads)} values for {blocks} blocks")
    return frozenset(i for i, count in enumerate(heads) if count == 0)


def _every(keys: Keys, blocks: int) -> frozenset[int]:
    """All blocks."""
    if blocks > MOST_BLOCKS:
        raise ModelError(f"{keys.full('block_count')} is {blocks}: at most {MOST_BLOCKS} run")
    return frozenset(range(blocks))


def ssm_of(keys: Keys, traits: Traits, hidden: int) -> Ssm:
    """Sizes of recurrent blocks: heads divide the channels, and groups divide the heads."""
    if traits.shortconv:
        return Ssm(taps=keys.count("shortconv.l_cache", least=2), inner=hidden)
    found = Ssm(
        taps=keys.count("ssm.conv_kernel", least=2),
        inner=keys.count("ssm.inner_size"),
        state=keys.count("ssm.state_size"),
        rank=keys.count("ssm.time_step_rank"),
        groups=keys.count("ssm.group_count", 1),
    )
    if keys.prefix != "mamba" and (found.inner % found.rank or found.rank % found.groups):
        raise ModelError(
            f"{keys.full('ssm')}: {found.inner} channels, {found.rank} heads and {found.groups}"
            " groups: heads divide channels, and groups divide heads"
        )
    if traits.delta and found.inner != found.rank * found.state:
        raise ModelError(
            f"{keys.full('ssm.inner_size')} is {found.inner}: want {found.rank} heads of state_size"
            f" {found.state}"
        )
    if keys.prefix == "mamba" and keys.flag("ssm.dt_b_c_rms", False):
        raise ModelError("mamba.ssm.dt_b_c_rms is true: norms of dt, B and C are not supported")
    return found
