"""A file's keys about its mixtures of experts."""

from engine.config import Experts
from engine.errors import ModelError
from engine.metadata.architectures import Routing
from engine.metadata.keys import Keys

LISTED = "expert_layers"  # whether each block has experts; llama.cpp has no key of that kind
GATING = {1: "softmax", 2: "sigmoid", 3: ""}  # llama.cpp's numbers, by Routing.scores


def dense_of(keys: Keys, routing: Routing | None, blocks: int, mtp_blocks: int) -> frozenset[int]:
    """The blocks without experts: the first so many, or by a list of flags."""
    if routing and routing.counted:
        return frozenset(range(min(keys.count("leading_dense_block_count", 0, least=0), blocks)))
    listed = keys.flags(LISTED, blocks + mtp_blocks) if routing and routing.listed else None
    return frozenset(i for i, sparse in enumerate((listed or ())[:blocks]) if not sparse)


def experts_of(keys: Keys, routing: Routing | None, ffn: int) -> Experts | None:
    """The config of its mixtures, or None where its networks are dense."""
    count = keys.count("expert_count", 0, least=0)
    if not count:
        return None
    if routing is None:
        raise ModelError(f"{keys.full('expert_count')}: mixtures of experts are not supported")
    used = keys.count("expert_used_count")
    width = max(1, ffn // used) if routing.part else ffn
    width = keys.count("expert_feed_forward_length", width, least=0) or width
    default = ffn if routing.gated else 0
    if routing.counted:
        default = width * keys.count("expert_shared_count", 0, least=0)
    shared = keys.count("expert_shared_feed_forward_length", default, least=0)
    usual = next(number for number, name in GATING.items() if name == routing.scores)
    gating = keys.count("expert_gating_func", usual, least=0) or usual
    if gating not in GATING:
        raise ModelError(
            f"{keys.full('expert_gating_func')} is {gating}:"
            " want 1 (softmax), 2 (sigmoid) or 3 (softmax of the chosen)"
        )
    found = Experts(
        count=count,
        used=used,
        ffn=width,
        scores=GATING[gating],
        normed=keys.flag("expert_weights_norm", routing.normed),
        scale=keys.real("expert_weights_scale", 1.0) or 1.0,
        groups=keys.count("expert_group_count", 1, least=0) or 1,
        kept=keys.count("expert_group_used_count", 1, least=0) or 1,
        shared=shared,
        shared_gate=routing.gated and shared > 0,
    )
    if used > count:
        raise ModelError(f"{keys.full('expert_used_count')} is {used}, of {count} experts")
    if found.scores == routing.lone and found.kept < found.groups:
        raise ModelError(
            f"{keys.full('expert_group_count')} is {found.groups}: groups of {found.scores} scores,"
            " each of which goes by its best expert, are not supported"
        )
    if count % found.groups or found.kept > found.groups:
        raise ModelError(
            f"{keys.full('expert_group_count')} {found.groups}, of which {found.kept} are used,"
            f" does not divide {count} experts"
        )
    if used > found.kept * (count // found.groups):
        raise ModelError(
            f"{keys.full('expert_used_count')} is {used}, more than {found.kept} groups have"
        )
    return found
