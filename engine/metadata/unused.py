"""Keys that no graph here computes with: known and harmless, or refused by name.

A key under the architecture's name that is in none of these tables is refused, since its effect is
unknown. Keys under other names (general., tokenizer., quantize., a vendor's own) do not affect a
graph, except those in ELSEWHERE. Names are those of the `gguf` package's constants.
"""

from collections.abc import Container, Mapping
from typing import Any

from engine.gguf.cursor import shown

# They change nothing, whatever their value.
INFORMATION = frozenset(
    {
        "vocab_size",  # given by the embedding's rows
        "embedding_length_out",  # of a model of embeddings, as is the next
        "pooling_type",
        "n_deepstack_layers",  # to which an image's tokens are added
        "rope.scaling.finetuned",
        "attention.layer_norm_epsilon",  # a family has one kind of norm, and reads its key
        "attention.layer_norm_rms_epsilon",
        # about mixtures of experts, in a model without
        "expert_used_count",
        "expert_shared_count",  # given by the width of the shared network
        "expert_group_count",
        "expert_group_used_count",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "expert_weights_scale",
        "expert_weights_norm",
        "expert_gating_func",
        # about Mamba 2's blocks, in a Granite 4 without any
        "ssm.conv_kernel",
        "ssm.group_count",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
        # about blocks with a window, in a file without one
        "attention.sliding_window_pattern",
        "attention.key_length_swa",
        "attention.value_length_swa",
        "rope.dimension_count_swa",
        "rope.freq_base_swa",
    }
)

OFF = (0,)  # and False, which equals it
NO_SCALE = (0, 1)
# Features that they request, and the values that request nothing.
ASKED: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "activation_sparsity_scale": ("sparsity by a normal's quantile", OFF),
    "attention.clamp_kqv": ("bounds of queries, keys and values", OFF),
    "attention.kv_lora_rank": ("keys and values out of a latent vector", OFF),
    "attention.max_alibi_bias": ("ALiBi", OFF),
    "attention.output_scale": ("scale of attention's output", NO_SCALE),
    "attention.q_lora_rank": ("queries out of a latent vector", OFF),
    "attention.scale": ("other scale of queries by keys than 1 / sqrt(key_length)", OFF),
    "attention.shared_kv_layers": ("keys and values that blocks share", OFF),
    "attention.temperature_length": ("temperature of attention by position", OFF),
    "attention.temperature_scale": ("temperature of attention by position", OFF),
    "attn_logit_softcapping": ("soft cap of attention's logits", OFF),
    "embedding_scale": ("scale of the embedding", NO_SCALE),
    "expert_chunk_feed_forward_length": ("experts of chunks", OFF),
    "expert_group_scale": ("scale of groups of experts", NO_SCALE),
    "experts_per_group": ("experts that share their rows", NO_SCALE),
    "final_logit_softcapping": ("soft cap of the logits", OFF),
    "full_attention_interval": ("second kind of attention", OFF),
    "interleave_moe_layer_step": ("mixtures in some blocks alone", NO_SCALE),
    "leading_dense_block_count": ("blocks without a mixture", OFF),
    "logit_scale": ("scale of the logits", NO_SCALE),
    "moe_every_n_layers": ("mixtures in some blocks alone", NO_SCALE),
    "nextn_predict_layers": ("multi-token prediction blocks", OFF),
    "residual_scale": ("scale of what blocks add", NO_SCALE),
    "rope.dimension_sections": ("positions of several dimensions", OFF),
    "rope.scaling.alpha": ("base of rotary positions that grows with alpha", OFF),
    "router_logit_softcapping": ("soft cap of the router", OFF),
    "swiglu_clamp_exp": ("bounds of the feed-forward network", OFF),
    "swiglu_clamp_shexp": ("bounds of the feed-forward network", OFF),
    "swin_norm": ("norms behind what they belong to", OFF),
    "tensor_data_layout": ("other order of rows", ("Meta AI original pth", "jploski")),
}

# Keys that affect the computation although they are under no architecture's name.
ELSEWHERE: Mapping[str, str] = {
    "adapter.": "weights to be added to another model's",
    "clip.": "a model of images or sound",
    "diffusion.": "tokens in any order",
    "xielu.": "the activation xIELU",
}


def unused_key(metadata: Mapping[str, Any], architecture: str, read: Container[str]) -> str | None:
    """The line that refuses the first key that affects the computation and was not `read`; None
    where there is no such key."""
    for key, value in metadata.items():
        name = key.removeprefix(f"{architecture}.")
        if asked := next((what for first, what in ELSEWHERE.items() if key.startswith(first)), ""):
            return f"key {shown(key)} is of {asked}, which this engine does not run"
        if name == key or key in read or name in INFORMATION:
            continue
        if name not in ASKED:
            return (
                f"key {shown(key)} is not known here: it may change the answers"
                " (assay inspect MODEL --remove KEY -o OUT makes a copy without it)"
            )
        asked, nothing = ASKED[name]
        if any(one not in nothing for one in (value if isinstance(value, list) else [value])):
            return (
                f"{key} is {value!r:.40}, but {architecture} here has no {asked}:"
                " its answers would be wrong"
            )
    return None
