"""OPT: Meta's 125M to 66B, but for the 350M, whose norms come after what they norm."""

from typing import ClassVar

from engine.convert.family import Family
from engine.convert.fields import Fields
from engine.gguf import writer as gw
from reference.models.opt import UNUSED


class OPT(Family):
    """OPT, as PowerInfer names its parts: llama.cpp has no such architecture."""

    architectures = ("OPTForCausalLM",)
    about = "OPT 125M to 66B, but 350M"
    gguf = "opt"
    modules: ClassVar = {
        "token_embd": "model.decoder.embed_tokens",
        "position_embd": "model.decoder.embed_positions",
        "output_norm": "model.decoder.final_layer_norm",
        "output": "lm_head",
        "attn_norm": "model.decoder.layers.{}.self_attn_layer_norm",
        "attn_q": "model.decoder.layers.{}.self_attn.q_proj",
        "attn_k": "model.decoder.layers.{}.self_attn.k_proj",
        "attn_v": "model.decoder.layers.{}.self_attn.v_proj",
        "attn_output": "model.decoder.layers.{}.self_attn.out_proj",
        "ffn_norm": "model.decoder.layers.{}.final_layer_norm",
        "ffn_up": "model.decoder.layers.{}.fc1",
        "ffn_down": "model.decoder.layers.{}.fc2",
    }
    activation = "activation_function"
    ropes = ()
    ties = True

    def check(self, config: Fields) -> None:
        super().check(config)
        for name in ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"):
            if not config.flag(name, True):
                raise config.error(f"{name} is false; this family runs models where it is true")
        if config.flag("_remove_final_layer_norm", False):
            raise config.error("_remove_final_layer_norm is true; this family ends with a norm")
        hidden = config.count("hidden_size")
        if (width := config.count("word_embed_proj_dim", hidden)) != hidden:
            raise config.error(
                f"word_embed_proj_dim is {width}; this family runs that of hidden_size, {hidden}"
            )

    def shape(self, config: Fields) -> gw.Keys:
        context = config.count("max_position_embeddings", 2048)
        return {
            **super().shape(config),
            "context_length": gw.u32(context + UNUSED),
            "feed_forward_length": gw.u32(config.count("ffn_dim")),
            # torch's, which config.json cannot change
            "attention.layer_norm_epsilon": gw.f32(1e-5),
        }
