"""Gemma 1 to 3."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from engine.config import ModelConfig
from engine.convert import windows
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.convert.models.llama import Llama
from engine.convert.text_part import TextPart
from engine.gguf import writer as gw
from engine.metadata.architectures import ARCHITECTURES
from reference.formats.format import Floats


class Gemma(Llama):
    """LLaMA with GELU, a scaled embedding, the checkpoint's own order of rows, and norms from which
    the checkpoint takes 1."""

    architectures: ClassVar[tuple[str, ...]] = ("GemmaForCausalLM",)
    about = "Gemma 1"
    gguf = "gemma"
    ties = True

    def check(self, config: Fields) -> None:
        super().check(config)
        for name in ("head_dim", "num_key_value_heads"):
            config.count(name)  # transformers' defaults are sizes of one model
        if config.flag("use_bidirectional_attention", False):
            raise config.error("use_bidirectional_attention is true: only causal models run")

    def activation_of(self, config: Fields) -> str:
        """The first checkpoints say gelu and mean its tanh form."""
        found = super().activation_of(config)
        return self.usual if found == "gelu" else found

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        return {
            name: replace(source, added=1.0) if "norm" in name else source
            for name, source in Family.sources(self, config, model).items()
        }


class Gemma2(Gemma):
    """Gemma with norms after attention and the network, soft caps, and windows."""

    architectures: ClassVar[tuple[str, ...]] = ("Gemma2ForCausalLM",)
    about = "Gemma 2"
    gguf = "gemma2"
    modules: ClassVar = {
        **Gemma.modules,
        "post_attention_norm": "model.layers.{}.post_attention_layernorm",
        "ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
        "post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
    }
    activation = "hidden_activation"
    activation_of = Family.activation_of  # where gelu is the exact form
    caps: ClassVar[Mapping[str, float | None]] = {
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }

    def shape(self, config: Fields) -> gw.Keys:
        # a cap of null is none, while a config without the field means transformers' default
        caps = {name: config.values.get(name, default) for name, default in self.caps.items()}
        return {
            **super().shape(config),
            **{name: gw.f32(config.real(name, cap) if cap else 0) for name, cap in caps.items()},
            **self._scale(config),
            **windows.by_layer(config, self.gguf),
        }

    def notes(self, config: Fields) -> list[str]:
        found = super().notes(config)
        if self._scale(config):
            said = "its query_pre_attn_scalar is its own"
            found.append(f"{said}: llama.cpp, of {self.gguf}, computes with another")
        caps = {name: config.values.get(name, usual) for name, usual in self.caps.items() if usual}
        if lacking := [name for name, cap in caps.items() if not cap]:
            said = f"it has no {' and no '.join(lacking)}"
            found.append(f"{said}: llama.cpp, of {self.gguf}, divides by what is 0")
        return found

    def _scale(self, config: Fields) -> gw.Keys:
        """That of scores, where it is not what llama.cpp takes."""
        usual = config.count("head_dim")
        if config.count("num_hidden_layers") == ARCHITECTURES[self.gguf].by_width:
            usual = config.count("hidden_size") // config.count("num_attention_heads")
        by = config.real("query_pre_attn_scalar", 256)
        if by <= 0:
            raise config.error(f"query_pre_attn_scalar must be positive, got {by}")
        return {} if by == usual else {"attention.scale": gw.f32(by**-0.5)}


class Gemma3(TextPart, Gemma2):
    """Gemma 2 with norms of each head of queries and keys, no cap of scores, and rope of two bases,
    of which that of layers without a window may be stretched."""

    architectures = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
    about = "Gemma 3, of text alone"
    gguf = "gemma3"
    modules: ClassVar = {
        **Gemma2.modules,
        "attn_q_norm": "model.layers.{}.self_attn.q_norm",
        "attn_k_norm": "model.layers.{}.self_attn.k_norm",
    }
    caps: ClassVar = {"final_logit_softcapping": None}
    # The 4B's, which its config.json does not tell of the text's part.
    sizes: ClassVar = {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072,
    }  # fmt: skip

    def usual_words(self, config: Fields) -> Fields:
        usual = self.sizes if config.get("text_config") else {}
        return super().usual_words(Fields({**usual, **config.values}, config.place))

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.get("attn_logit_softcapping"):
            raise config.error("attn_logit_softcapping is set, which transformers ignores")
        of_windows = self._rope(config, "sliding_attention")
        if (kind := of_windows.get("rope_type", "default")) != "default":
            raise of_windows.error(f"rope_type is {kind!r}: want default in layers with a window")

    def shape(self, config: Fields) -> gw.Keys:
        usual = config.real("rope_local_base_freq", 10000.0)
        base = self._rope(config, "sliding_attention").real("rope_theta", usual)
        return {**super().shape(self._without(config)), "rope.freq_base_swa": gw.f32(base)}

    def notes(self, config: Fields) -> list[str]:
        return super().notes(self._without(config))

    def computed(self, config: Fields, model: ModelConfig) -> dict[str, Floats]:
        return super().computed(self._without(config), model)

    def _rope(self, config: Fields, kind: str) -> Fields:
        """What transformers from version 5 on says of the rope of a kind of layers."""
        return config.part("rope_parameters").part(kind)

    def _without(self, config: Fields) -> Fields:
        """The fields as if all layers turned like those without a window."""
        own = {"rope_parameters": self._rope(config, "full_attention").values}
        return Fields({"rope_theta": 1e6, **config.values, **own}, config.place)
