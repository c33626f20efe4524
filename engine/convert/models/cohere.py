"""Command R and Command A."""

from typing import ClassVar

from engine.convert import windows
from engine.convert.fields import Fields
from engine.convert.models.qwen import Qwen2, Qwen3
from engine.gguf import writer as gw


class Cohere(Qwen2):
    """LLaMA's halves side by side, LayerNorm without bias, and a scale of the logits."""

    architectures = ("CohereForCausalLM",)
    about = "Command R, Command R+ and Aya 23"
    gguf = "command-r"
    modules: ClassVar = Qwen3.modules
    ties = True
    required = ("rope_theta",)
    head_norms: ClassVar[str] = "use_qk_norm"
    biases: ClassVar = Qwen3.biases

    def notes(self, config: Fields) -> list[str]:
        found, normed = super().notes(config), config.flag("use_qk_norm", False)
        if self.head_norms and normed != (config.count("num_hidden_layers") >= 64):
            said = "have norms" if normed else "have no norms"
            found.append(f"its queries and keys {said}: llama.cpp goes by whether layers are 64")
        return found

    def shape(self, config: Fields) -> gw.Keys:
        found = dict(super().shape(config))
        del found["attention.layer_norm_rms_epsilon"]
        return {
            **found,
            "attention.layer_norm_epsilon": gw.f32(config.real("layer_norm_eps", 1e-5)),
            "logit_scale": gw.f32(config.real("logit_scale", 0.0625)),
        }


class Cohere2(Cohere):
    """Command R with windows, and rope in layers that have one alone."""

    architectures = ("Cohere2ForCausalLM",)
    about = "Command R7B and Command A"
    gguf = "cohere2"
    head_norms = ""

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.flag("use_qk_norm", False):
            raise config.error("use_qk_norm is true; this family has no norms of queries and keys")

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **windows.by_layer(config, self.gguf)}
