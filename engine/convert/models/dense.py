"""The dense architectures of Hugging Face's that this engine runs, one small class each.

A family says what config.json's fields mean and what its tensors are called. To add one whose
graph is another's, derive from that one; then add it to FAMILIES, and a checkpoint of it to
conformance/llama/test_transformers.py, where transformers' logits are the judge.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from engine.config import ModelConfig
from engine.convert import rope_scaling, windows
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.convert.models.falcon import Falcon
from engine.convert.models.gpt2 import GPT2, MPT, Bloom
from engine.convert.models.lfm2 import Lfm2
from engine.convert.models.mamba import Mamba, Mamba2
from engine.convert.models.neox import GPTNeoX, Nemotron, Phi2, StableLM, StarCoder2
from engine.convert.models.opt import OPT
from engine.convert.text_part import TextPart
from engine.gguf import writer as gw
from engine.metadata.architectures import ARCHITECTURES
from reference.formats.format import Floats


class Llama(Family):
    """LLaMA, dense: Llama 1 to 3, and all that was trained in its shape."""

    architectures: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM", "LLaMAForCausalLM")
    about: ClassVar[str] = "Llama 1 to 3, TinyLlama, SmolLM 1 and 2, Yi, Vicuna"
    gguf: ClassVar[str] = "llama"
    modules: ClassVar[Mapping[str, str]] = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_norm": "model.layers.{}.input_layernorm",
        "attn_q": "model.layers.{}.self_attn.q_proj",
        "attn_k": "model.layers.{}.self_attn.k_proj",
        "attn_v": "model.layers.{}.self_attn.v_proj",
        "attn_output": "model.layers.{}.self_attn.o_proj",
        "ffn_norm": "model.layers.{}.post_attention_layernorm",
        "ffn_gate": "model.layers.{}.mlp.gate_proj",
        "ffn_up": "model.layers.{}.mlp.up_proj",
        "ffn_down": "model.layers.{}.mlp.down_proj",
    }

    activation = "hidden_act"
    # Numbers without which transformers takes those of one model.
    required: ClassVar[tuple[str, ...]] = ()

    def check(self, config: Fields) -> None:
        super().check(config)
        for name in self.required:
            (rope_scaling.parameters(config) if name == "rope_theta" else config).real(name)

    def shape(self, config: Fields) -> gw.Keys:
        heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
        head_dim = config.count("head_dim", max(hidden // heads, 1))
        part = rope_scaling.part_turned(config, self.part_turned or 1.0)
        return {
            **super().shape(config),
            "feed_forward_length": gw.u32(config.count("intermediate_size")),
            "attention.head_count_kv": gw.u32(self.kv_heads(config, heads)),
            "attention.key_length": gw.u32(head_dim),
            "attention.value_length": gw.u32(head_dim),
            "attention.layer_norm_rms_epsilon": gw.f32(config.real("rms_norm_eps", 1e-6)),
            "rope.dimension_count": gw.u32(int(head_dim * part)),
            **rope_scaling.keys(config),
        }

    def kv_heads(self, config: Fields, heads: int) -> int:
        return config.count("num_key_value_heads", heads)

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        return {
            name: replace(source, head_dim=model.head_dim)
            if name.split(".")[-2] in ("attn_q", "attn_k")
            else source
            for name, source in super().sources(config, model).items()
        }


class Mistral(TextPart, Llama):
    """LLaMA, but for a window that attention may be limited to."""

    architectures: ClassVar[tuple[str, ...]] = (
        "MistralForCausalLM",
        "Mistral3ForConditionalGeneration",
    )
    about = "Mistral 7B and Nemo, what was made of them, and the text part of Mistral Small 3.1"
    kinds: ClassVar[tuple[str, ...]] = ("mistral", "mistral3")  # of model_type
    window: ClassVar[int | None] = 4096  # where config.json does not say

    def check(self, config: Fields) -> None:
        super().check(config)
        if (kind := config.get("model_type", self.kinds[0])) not in self.kinds:
            raise config.error(
                f"its text's model_type is {kind!r}; this family runs {self.kinds[0]}"
            )

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **windows.of_all(config, usual=self.window)}

    def notes(self, config: Fields) -> list[str]:
        return super().notes(config) + windows.notes(config, self.gguf, usual=self.window)

    def kv_heads(self, config: Fields, heads: int) -> int:
        told = "num_key_value_heads" in config.values
        return super().kv_heads(config, heads if told else 8)


class Ministral3(Mistral):
    """Mistral with YaRN and a temperature of attention by position."""

    architectures = ("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration")
    about = "Ministral 3, of text alone"
    gguf = "mistral3"
    text_kind = "ministral3"
    kinds = ("ministral3", "mistral3")
    window = None
    # transformers' defaults are sizes of one model
    required = ("head_dim", "num_key_value_heads", "rope_theta")

    def shape(self, config: Fields) -> gw.Keys:
        rope = rope_scaling.parameters(config)
        length = rope.count("original_max_position_embeddings")
        return {
            **super().shape(config),
            "rope.scaling.original_context_length": gw.u32(length),
            "attention.temperature_scale": gw.f32(rope.real("llama_4_scaling_beta")),
        }


class Qwen2(Llama):
    """LLaMA with biases of queries, keys and values, and the checkpoint's own order of rows."""

    architectures: ClassVar[tuple[str, ...]] = ("Qwen2ForCausalLM",)
    about = "Qwen 1.5 to 2.5, dense"
    gguf = "qwen2"

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **windows.where_switched(config, self.gguf)}

    def notes(self, config: Fields) -> list[str]:
        return super().notes(config) + windows.notes_where_switched(config, self.gguf)

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        return Family.sources(self, config, model)


class Qwen3(Qwen2):
    """Qwen 2 with norms of each head of queries and keys in place of biases."""

    architectures: ClassVar[tuple[str, ...]] = ("Qwen3ForCausalLM",)
    about = "Qwen 3, dense"
    gguf = "qwen3"
    modules: ClassVar = {
        **Qwen2.modules,
        "attn_q_norm": "model.layers.{}.self_attn.q_norm",
        "attn_k_norm": "model.layers.{}.self_attn.k_norm",
    }
    required: ClassVar[tuple[str, ...]] = ("head_dim", "num_key_value_heads")


class SmolLM3(Llama):
    """LLaMA with layers without rope, every fourth."""

    architectures = ("SmolLM3ForCausalLM",)
    about = "SmolLM 3"
    gguf = "smollm3"
    ties = True
    required = ("num_key_value_heads", "rope_theta")

    def check(self, config: Fields) -> None:
        super().check(config)
        layers, every = range(config.count("num_hidden_layers")), ARCHITECTURES[self.gguf].no_rope
        interval = config.count("no_rope_layer_interval", every)
        turned = config.get("no_rope_layers", [int((i + 1) % interval > 0) for i in layers])
        if turned != [int((i + 1) % every > 0) for i in layers]:
            raise config.error(f"no_rope_layers: this family has no rope in every {every}th alone")

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **windows.where_switched(config, self.gguf)}

    def notes(self, config: Fields) -> list[str]:
        return super().notes(config) + windows.notes_where_switched(config, self.gguf)


class Granite(Llama):
    """LLaMA with scales."""

    architectures: ClassVar[tuple[str, ...]] = ("GraniteForCausalLM",)
    about = "Granite 3, dense"
    gguf = "granite"

    def shape(self, config: Fields) -> gw.Keys:
        scales = {
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "attention.scale": "attention_multiplier",
            "logit_scale": "logits_scaling",
        }
        told = {key: config.real(name, 1.0) for key, name in scales.items()}
        if not all(told.values()):
            raise config.error(f"a scale is 0: {told}")
        return {**super().shape(config), **{key: gw.f32(one) for key, one in told.items()}}


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


class SeedOss(Qwen2):
    """Qwen 2 with or without biases."""

    architectures = ("SeedOssForCausalLM",)
    about = "Seed-OSS"
    gguf = "seed_oss"
    modules: ClassVar = {
        **Qwen2.modules,
        "post_attention_norm": "model.layers.{}.post_attention_layernorm",
    }
    required = ("head_dim", "num_key_value_heads")


class Ernie(Qwen2):
    """LLaMA, whose checkpoint has rows in GGUF's order."""

    architectures = ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
    about = "ERNIE 4.5, dense"
    gguf = "ernie4_5"
    ties = True
    required = ("head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta")


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


class Phi3(Qwen2):
    """LLaMA with fused tensors and long rope."""

    architectures = ("Phi3ForCausalLM",)
    about = "Phi 3, Phi 4 and Phi 4 mini, dense"
    gguf = "phi3"
    modules: ClassVar = {
        **Qwen2.modules,
        "attn_qkv": "model.layers.{}.self_attn.qkv_proj",
        "ffn_up": "model.layers.{}.mlp.gate_up_proj",
    }
    required = ("max_position_embeddings", "rms_norm_eps")
    part_turned = 1.0
    ropes = ("default", "linear", "yarn", "longrope")

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **windows.of_all(config)}

    def notes(self, config: Fields) -> list[str]:
        return super().notes(config) + windows.notes(config, self.gguf)


class Cohere(Qwen2):
    """LLaMA's halves side by side, LayerNorm without bias, and a scale of the logits."""

    architectures = ("CohereForCausalLM",)
    about = "Command R, Command R+ and Aya 23"
    gguf = "command-r"
    modules: ClassVar = Qwen3.modules
    ties = True
    required = ("rope_theta",)
    head_norms: ClassVar[str] = "use_qk_norm"

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


FAMILIES: tuple[Family, ...] = (
    Llama(), Mistral(), Ministral3(), Qwen2(), Qwen3(), Gemma(), Gemma2(), Gemma3(), SmolLM3(),
    Granite(), Olmo2(), Olmo3(), Exaone4(), SeedOss(), Ernie(), Glm4(), Phi3(), Cohere(), Cohere2(),
    Falcon(), OPT(), Phi2(), GPTNeoX(), StarCoder2(), StableLM(), Nemotron(), GPT2(), Bloom(),
    MPT(), Mamba(), Mamba2(), Lfm2(),
)  # fmt: skip


def neighbours(rows: Floats, head_dim: int) -> Floats:
    """Rows of each head from pairs (i, i + head_dim / 2), as Hugging Face's rope has them, to
    pairs (2i, 2i + 1), as GGUF's llama does."""
    halves = rows.reshape(len(rows) // head_dim, 2, head_dim // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)
