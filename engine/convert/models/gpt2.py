"""The families of engine/models/gpt2.py: GPT-2, BLOOM and MPT."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from engine.config import ModelConfig
from engine.convert.checkpoint import Tensor
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.convert.models.neox import apart
from engine.gguf import writer as gw
from engine.torch_file import StoredTensor


class GPT2(Family):
    """GPT-2, whose checkpoint has its matrices transposed, with the inputs as rows."""

    architectures = ("GPT2LMHeadModel",)
    about = "GPT-2, DistilGPT-2, Cerebras-GPT"
    gguf = "gpt2"
    modules: ClassVar = {
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        "attn_norm": "transformer.h.{}.ln_1",
        "attn_qkv": "transformer.h.{}.attn.c_attn",
        "attn_output": "transformer.h.{}.attn.c_proj",
        "ffn_norm": "transformer.h.{}.ln_2",
        "ffn_up": "transformer.h.{}.mlp.c_fc",
        "ffn_down": "transformer.h.{}.mlp.c_proj",
    }
    words: ClassVar = {
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    }
    base = "transformer."
    unused = r"transformer\.h\.\d+\.attn\.(bias|masked_bias)"
    activation = "activation_function"
    ropes = ()
    ties = True

    def check(self, config: Fields) -> None:
        super().check(config)
        for name, wanted in (
            ("scale_attn_weights", True),
            ("scale_attn_by_inverse_layer_idx", False),
            ("add_cross_attention", False),
        ):
            if config.flag(name, wanted) != wanted:
                raise config.error(f"{name} is {str(not wanted).lower()}, which this family is not")

    def shape(self, config: Fields) -> gw.Keys:
        hidden = config.count("hidden_size")
        return {
            **super().shape(config),
            "feed_forward_length": gw.u32(config.count("intermediate_size", 4 * hidden)),
            "attention.layer_norm_epsilon": gw.f32(config.real("layer_norm_epsilon", 1e-5)),
        }

    def named(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        matrices = re.compile(r".*\.(c_attn|c_proj|c_fc)\.weight")
        return {
            name: transposed(tensor) if matrices.fullmatch(name) else tensor
            for name, tensor in super().named(tensors).items()
        }


def transposed(tensor: Tensor) -> Tensor:
    """The same elements under dimensions the other way round."""
    assert isinstance(tensor, StoredTensor)
    return replace(tensor, dims=tensor.dims[::-1], strides=tensor.strides[::-1])


class Bloom(Family):
    """BLOOM, whose fused tensor has a head's query, key and value, then the next head's."""

    architectures = ("BloomForCausalLM",)
    about = "BLOOM and BLOOMZ"
    gguf = "bloom"
    modules: ClassVar = {
        "token_embd": "transformer.word_embeddings",
        "token_embd_norm": "transformer.word_embeddings_layernorm",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        "attn_norm": "transformer.h.{}.input_layernorm",
        "attn_qkv": "transformer.h.{}.self_attention.query_key_value",
        "attn_output": "transformer.h.{}.self_attention.dense",
        "ffn_norm": "transformer.h.{}.post_attention_layernorm",
        "ffn_up": "transformer.h.{}.mlp.dense_h_to_4h",
        "ffn_down": "transformer.h.{}.mlp.dense_4h_to_h",
    }
    words: ClassVar = {
        "hidden_size": "n_embed",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "seq_length",
    }
    base = "transformer."
    activation = "hidden_act"  # which no config has: it is GELU's tanh form
    ropes = ()
    ties = True

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.flag("apply_residual_connection_post_layernorm", False):
            raise config.error(
                "apply_residual_connection_post_layernorm is true; this family adds to what its"
                " norms read"
            )

    def shape(self, config: Fields) -> gw.Keys:
        return {
            **super().shape(config),
            "feed_forward_length": gw.u32(4 * config.count("hidden_size")),
            "attention.layer_norm_epsilon": gw.f32(config.real("layer_norm_epsilon", 1e-5)),
        }

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        return {
            name: apart(source, model) if ".attn_qkv." in name else source
            for name, source in super().sources(config, model).items()
        }


class MPT(Family):
    """MPT with ALiBi, and with nothing between its queries, keys and values and their product."""

    architectures = ("MPTForCausalLM", "MptForCausalLM")
    about = "MPT without clip_qkv"
    gguf = "mpt"
    modules: ClassVar = {
        "token_embd": "transformer.wte",
        "output_norm": "transformer.norm_f",
        "output": "lm_head",
        "attn_norm": "transformer.blocks.{}.norm_1",
        "attn_qkv": "transformer.blocks.{}.attn.Wqkv",
        "attn_output": "transformer.blocks.{}.attn.out_proj",
        "ffn_norm": "transformer.blocks.{}.norm_2",
        "ffn_up": "transformer.blocks.{}.ffn.up_proj",
        "ffn_down": "transformer.blocks.{}.ffn.down_proj",
    }
    words: ClassVar = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "max_seq_len",
    }
    base = "transformer."
    activation = "hidden_act"  # which no config has: it is GELU
    ropes = ()
    ties = True

    def check(self, config: Fields) -> None:
        super().check(config)
        attention = config.part("attn_config")
        for name in ("clip_qkv", "qk_ln", "prefix_lm", "softmax_scale"):
            if attention.get(name):
                raise attention.error(f"{name} is {attention.get(name)}; this family has none")
        if not attention.flag("alibi", True):
            raise attention.error("alibi is false; this family runs ALiBi")
        if (kind := attention.get("attn_type", "multihead_attention")) != "multihead_attention":
            raise attention.error(f"attn_type is {kind!r}; this family runs multihead_attention")
        if scale := config.get("logit_scale"):
            raise config.error(f"logit_scale is {scale!r}; this family has none")

    def shape(self, config: Fields) -> gw.Keys:
        width = config.count("expansion_ratio", 4) * config.count("hidden_size")
        largest = config.part("attn_config").real("alibi_bias_max", 8.0)
        return {
            **super().shape(config),
            "feed_forward_length": gw.u32(width),
            "attention.layer_norm_epsilon": gw.f32(config.real("layer_norm_epsilon", 1e-5)),
            "attention.max_alibi_bias": gw.f32(largest),
        }
