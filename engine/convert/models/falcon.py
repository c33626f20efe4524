"""Falcon: tiiuae's 7B (one head of keys and values), 40B and 11B (groups of heads)."""

from typing import ClassVar

from engine.config import ModelConfig
from engine.convert import rope_scaling
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.gguf import writer as gw


class Falcon(Family):
    """Falcon, with rotary positions and its two halves side by side."""

    architectures = ("FalconForCausalLM",)
    about = "Falcon 7B, 11B, 40B and 180B"
    gguf = "falcon"
    modules: ClassVar = {
        "token_embd": "transformer.word_embeddings",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        "attn_norm": "transformer.h.{}.input_layernorm",
        "attn_norm_2": "transformer.h.{}.ln_attn",
        "attn_qkv": "transformer.h.{}.self_attention.query_key_value",
        "attn_output": "transformer.h.{}.self_attention.dense",
        "ffn_up": "transformer.h.{}.mlp.dense_h_to_4h",
        "ffn_down": "transformer.h.{}.mlp.dense_4h_to_h",
    }
    base = "transformer."
    activation = "activation"
    ties = True

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.flag("alibi", False):
            raise config.error("alibi is true; this family runs rotary positions")
        if config.flag("bias", False):
            raise config.error("bias is true; this family's projections have none")
        if not self._grouped(config) and not config.flag("parallel_attn", True):
            raise config.error("parallel_attn is false; this family's two halves run side by side")

    def shape(self, config: Fields) -> gw.Keys:
        heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
        return {
            **super().shape(config),
            "feed_forward_length": gw.u32(config.count("ffn_hidden_size", 4 * hidden)),
            "attention.head_count_kv": gw.u32(self._kv_heads(config, heads)),
            "attention.layer_norm_epsilon": gw.f32(config.real("layer_norm_epsilon", 1e-5)),
            "tensor_data_layout": gw.text("jploski"),  # queries, then keys, then values
            **rope_scaling.keys(config),
        }

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        """Groups of queries with their key and value become all queries, all keys, all values."""
        found = super().sources(config, model)
        size, groups = model.head_dim, model.kv_heads
        each = (model.heads // groups + 2) * size  # rows of a group
        starts = [group * each for group in range(groups)]
        stretches = [(start, start + each - 2 * size) for start in starts]
        for end in (2, 1):
            last = [start + each - end * size for start in starts]
            stretches += [(first, first + size) for first in last]
        for name, source in list(found.items()):
            part = name.split(".")[2] if name.startswith("blk.") else ""
            if part == "attn_qkv":
                found[name] = Source(source.name, source.dims, stretches=tuple(stretches))
            elif part == "attn_norm" and self._two_norms(config):
                theirs = source.name.replace("input_layernorm", "ln_mlp")
                found[name] = Source(theirs, source.dims)
                second = theirs.replace("ln_mlp", "ln_attn")
                found[name.replace("attn_norm", "attn_norm_2")] = Source(second, source.dims)
        return found

    def _grouped(self, config: Fields) -> bool:
        return config.flag("new_decoder_architecture", False)

    def _two_norms(self, config: Fields) -> bool:
        return self._grouped(config) and config.count("num_ln_in_parallel_attn", 2) == 2

    def _kv_heads(self, config: Fields, heads: int) -> int:
        if self._grouped(config):
            return config.count("num_kv_heads", heads)
        return 1 if config.flag("multi_query", True) else heads
