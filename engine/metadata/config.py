"""Builds a ModelConfig from a file's keys."""

from collections.abc import Mapping
from typing import Any

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.metadata.architectures import ARCHITECTURES, Traits
from engine.metadata.experts import dense_of, experts_of
from engine.metadata.keys import Keys
from engine.metadata.missing import MISSING
from engine.metadata.mixers import latent_of, recurrent_of, ssm_of, windowed_of
from engine.metadata.rope import check_sections, rope_scaling_of, steepness, without_magnitude
from engine.metadata.sizes import sizes_of
from engine.metadata.unused import unused_key
from reference.models.transformer import Scales


def config_of(metadata: Mapping[str, Any], vocab: int) -> ModelConfig:
    """The config; `vocab` is the number of rows of the token embedding."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        op = MISSING.get(str(architecture))
        why = f"which is missing {op}" if op else f"not one of {', '.join(ARCHITECTURES)}"
        raise ModelError(f"general.architecture is {architecture!r}, {why}")
    keys, traits = Keys(metadata, architecture), ARCHITECTURES[architecture]
    unused = traits.no_position or 0
    context = keys.count("context_length", least=unused + 1) - unused
    least = 0 if traits.ssm else 1
    heads = keys.count("attention.head_count", least=least)
    mtp_blocks = keys.count("nextn_predict_layers", 0, least=0) if traits.mtp else 0
    blocks = keys.count("block_count", least=mtp_blocks + 1) - mtp_blocks
    hidden = keys.count("embedding_length")
    if not traits.ssm and hidden % heads and keys.full("attention.key_length") not in metadata:
        raise ModelError(
            f"{architecture}.embedding_length {hidden} is no multiple of"
            f" attention.head_count {heads}, and attention.key_length is missing"
        )
    head_dim = 0 if traits.ssm else keys.count("attention.key_length", hidden // heads)
    recurrent = recurrent_of(keys, traits, blocks, mtp_blocks)
    some = int(traits.window is None)
    window = keys.count("attention.sliding_window", traits.window, least=some)
    windowed = windowed_of(keys, traits.windows, blocks) if window else frozenset()
    sizes = sizes_of(keys, blocks, heads, head_dim, windowed) if traits.by_block else ()
    if sizes:
        kv_heads = sizes[0].kv_heads
    else:
        kv_heads = keys.agreed("attention.head_count_kv", heads, least, without=recurrent)
    latent, value = None, head_dim
    if traits.latent:
        latent = latent_of(keys, traits, head_dim, hidden // heads)
        value = latent.value if latent.joined else latent.kv_rank
        if latent.joined:
            if kv_heads != heads:
                name = keys.full("attention.head_count_kv")
                raise ModelError(f"{name} is {kv_heads}: all {heads} heads have keys here")
            kv_heads, head_dim = 1, latent.kv_rank + keys.count("rope.dimension_count")
    if head_dim and keys.count("attention.value_length", value) != value:
        other = "kv_lora_rank" if latent else "key_length"
        raise ModelError(f"{architecture}.attention.value_length differs from {other}")
    if not keys.flag("attention.causal", True):
        raise ModelError(f"{architecture}.attention.causal is false: only causal models run")
    no_rope = traits.no_rope
    if traits.rope_told and not keys.flag("rope.scaling.finetuned", True):
        no_rope = 1
    # unused in mixtures of these
    none = 0 if traits.delta and traits.experts else None
    if sizes:
        ffn = sizes[0].ffn
    else:
        ffn = keys.count("feed_forward_length", none, least if none is None else 0)
    rope_base = keys.real("rope.freq_base", 10000.0)
    window_base = rope_base if traits.unscaled else traits.window_base
    of_states = traits.ssm or traits.shortconv or traits.hybrid or traits.delta
    scales = _scales(keys, traits, hidden, blocks)
    width = (latent.key if latent else head_dim) or 1
    width = 1 if sizes else width
    scaling = rope_scaling_of(keys)
    if blocks == traits.by_width:
        width = max(1, hidden // heads)
    config = ModelConfig(
        architecture=architecture,
        name=str(metadata.get("general.name", "")),
        context=context,
        hidden=hidden,
        blocks=blocks,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        norm_eps=keys.real(*traits.norm_eps),
        activation=keys.one_of("hidden_activation", traits.activations),
        positions=0 if traits.no_position is None else context,
        rope_dims=keys.count("rope.dimension_count", head_dim, least),
        rope_base=rope_base,
        rope_scaling=without_magnitude(keys, scaling) if latent else scaling,
        fused_qkv=traits.fused_qkv,
        alibi=traits.alibi and keys.real("attention.max_alibi_bias", traits.alibi),
        parallel=traits.two_orders and keys.flag("use_parallel_residual", True),
        no_rope=no_rope,
        windows_rotate=traits.windows_rotate and window > 0,
        scales=scales,
        score_scale=scales.attention or width**-0.5 * steepness(keys, latent, scaling),
        score_cap=keys.least("attn_logit_softcapping", traits.score_cap),
        logit_cap=keys.least("final_logit_softcapping", traits.logit_cap),
        window=window if windowed else 0,
        windowed=windowed,
        window_base=keys.least("rope.freq_base_swa", window_base) if windowed else 0.0,
        ssm=ssm_of(keys, traits, hidden) if of_states else None,
        recurrent=recurrent,
        experts=experts_of(keys, traits.experts, ffn),
        dense=dense_of(keys, traits.experts, blocks, mtp_blocks),
        latent=latent,
        mtp_blocks=mtp_blocks,
        sizes=sizes,
        per_layer=_per_layer(keys) if sizes else 0,
        temperature=keys.real("attention.temperature_scale", 0.0) if traits.tempered else 0.0,
    )
    config.check()
    if traits.sections:
        check_sections(keys, config.rope_dims // 2, traits.sections)
    if fault := unused_key(metadata, architecture, keys.read):
        raise ModelError(fault)
    return config


def _scales(keys: Keys, traits: Traits, hidden: int, blocks: int) -> Scales:
    """Scales that the family has and the file gives, or MiniCPM's; 0 is none."""
    usual = {
        "embedding_scale": 12.0,
        "residual_scale": 1.4 / blocks**0.5,
        "logit_scale": hidden / 256,
    }
    found = {key: keys.least(key, traits.mup * usual.get(key, 0.0)) for key in traits.scales}
    logits = found.get("logit_scale") or 1.0
    return Scales(
        embedding=found.get("embedding_scale") or 1.0,
        residual=found.get("residual_scale") or 1.0,
        attention=found.get("attention.scale") or None,
        logits=1 / logits if traits.divides else logits,
    )


def _per_layer(keys: Keys) -> int:
    """Elements of a token's per-layer embedding, 0 where there is none."""
    return keys.count("embedding_length_per_layer_input", 0, least=0)
