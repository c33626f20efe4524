"""Families that normalise what attention and the network give: OLMo 2 and 3, EXAONE 4, GLM 4."""

from typing import ClassVar

from engine.config import ModelConfig
from engine.convert import rope_scaling, windows
from engine.convert.family import QKV
from engine.convert.fields import Fields
from engine.convert.models.qwen import Qwen2, Qwen3
from engine.gguf import writer as gw
from reference.formats.format import Floats


class Olmo2(Qwen2):
    """LLaMA with norms behind attention and the network, and of queries and keys."""

    architectures = ("Olmo2ForCausalLM",)
    about = "OLMo 2"
    gguf = "olmo2"
    modules: ClassVar = {
        **Qwen3.modules,
        "post_attention_norm": "model.layers.{}.post_attention_layernorm",
        "post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
    }
    required: ClassVar[tuple[str, ...]] = ("rms_norm_eps",)
    biases: ClassVar = Qwen3.biases


class Olmo3(Olmo2):
    """OLMo 2 with windows, and rope that is stretched in layers without one alone."""

    architectures = ("Olmo3ForCausalLM",)
    about = "OLMo 3"

    required = ("rms_norm_eps", "rope_theta")

    def check(self, config: Fields) -> None:
        super().check(self._without(config))
        rope = self._with(config)
        if (kind := rope.get("rope_type", "default")) != "default":
            raise rope.error(f"rope_type is {kind!r}: want default in layers with a window")

    def shape(self, config: Fields) -> gw.Keys:
        return {
            **super().shape(self._without(config)),
            **windows.by_layer(config, self.gguf),
            "rope.freq_base_swa": gw.f32(self._bases(config)[0]),
        }

    def notes(self, config: Fields) -> list[str]:
        found, (own, others) = super().notes(self._without(config)), self._bases(config)
        if own != others:
            said = f"rope has a base of {own:g} in layers with a window"
            found.append(f"{said}: llama.cpp, of {self.gguf}, takes that of the others, {others:g}")
        return found

    def computed(self, config: Fields, model: ModelConfig) -> dict[str, Floats]:
        return super().computed(self._without(config), model)

    def _with(self, config: Fields) -> Fields:
        """What is said of the rope of layers with a window."""
        return rope_scaling.parameters(rope_scaling.of_layers(config, "sliding_attention"))

    def _bases(self, config: Fields) -> tuple[float, float]:
        """Those of rope in layers with a window and in the others."""
        others = rope_scaling.parameters(self._without(config)).real("rope_theta")
        return self._with(config).real("rope_theta"), others

    def _without(self, config: Fields) -> Fields:
        """The fields as if all layers turned like those without one."""
        return rope_scaling.of_layers(config, "full_attention")


class Exaone4(Qwen2):
    """OLMo 2 with norms of each head; where it has windows rope turns in layers with one alone."""

    architectures = ("Exaone4ForCausalLM",)
    about = "EXAONE 4, dense"
    gguf = "exaone4"
    modules: ClassVar = Olmo2.modules
    required = ("num_key_value_heads", "rms_norm_eps")

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **self._windows(config)}

    def notes(self, config: Fields) -> list[str]:
        found = super().notes(config)
        if self._windows(config) and config.count("num_hidden_layers") != 64:
            said = "it has windows, and layers without rope"
            found.append(f"{said}: llama.cpp, of {self.gguf}, has them where layers are 64")
        return found

    def _windows(self, config: Fields) -> gw.Keys:
        if config.values.get("sliding_window", 4096) is None:
            return {}
        if config.get("layer_types"):  # transformers reads no pattern then, which may be "LLLG"
            config = Fields({**config.values, "sliding_window_pattern": None}, config.place)
        return windows.by_layer(config, self.gguf)


class Glm4(Qwen2):
    """LLaMA with norms behind attention and the network, too, and rope of a part of each head."""

    architectures = ("Glm4ForCausalLM",)
    about = "GLM 4 0414, dense"
    gguf = "glm4"
    modules: ClassVar = {
        **Qwen2.modules,
        "post_attention_norm": "model.layers.{}.post_self_attn_layernorm",
        "post_ffw_norm": "model.layers.{}.post_mlp_layernorm",
        "ffn_up": "model.layers.{}.mlp.gate_up_proj",
    }
    required = ("head_dim", "num_key_value_heads", "rms_norm_eps")
    part_turned = 0.5
    biases: ClassVar = {"attention_bias": QKV}
    biased = ("attention_bias",)
