"""Every model family that the engine runs, by GGUF's name of its architecture."""

from collections.abc import Mapping
from dataclasses import replace

from engine.config import ModelConfig
from engine.models import (
    command_r,
    deepseek2,
    experts,
    falcon,
    gemma,
    gemma4,
    gpt2,
    gpt_oss,
    granite_hybrid,
    lfm2,
    llama,
    mamba,
    neox,
    opt,
    phi3,
    post_norm,
    qwen,
    qwen3next,
)
from engine.models.family import Family, Part, output_and_two_sets

FAMILIES: Mapping[str, Family] = {
    "llama": llama.FAMILY,
    "bamboo": llama.FAMILY,
    "mistral3": llama.FAMILY,
    "falcon": falcon.FAMILY,
    "opt": opt.FAMILY,
    "gemma": gemma.FAMILY,
    "gemma2": gemma.FAMILY,
    "gemma3": gemma.FAMILY,
    "gemma4": gemma4.FAMILY,
    "qwen2": qwen.FAMILY,
    "qwen3": qwen.FAMILY,
    "qwen2moe": qwen.FAMILY,
    "qwen3moe": qwen.FAMILY,
    "olmoe": qwen.FAMILY,
    "phi2": neox.FAMILY,
    "gptneox": neox.FAMILY,
    "starcoder2": neox.FAMILY,
    "stablelm": neox.FAMILY,
    "nemotron": neox.FAMILY,
    "gpt2": gpt2.FAMILY,
    "bloom": gpt2.FAMILY,
    "mpt": gpt2.FAMILY,
    "smollm3": llama.FAMILY,
    "granite": llama.FAMILY,
    "granitemoe": llama.FAMILY,
    "granitehybrid": granite_hybrid.FAMILY,
    "gpt-oss": gpt_oss.FAMILY,
    "olmo2": post_norm.FAMILY,
    "exaone": qwen.FAMILY,
    "exaone4": post_norm.FAMILY,
    "internlm2": llama.FAMILY,
    "arcee": llama.FAMILY,
    "ernie4_5": llama.FAMILY,
    "ernie4_5-moe": llama.FAMILY,
    "glm4": post_norm.FAMILY,
    "phi3": phi3.FAMILY,
    "command-r": command_r.FAMILY,
    "cohere2": command_r.FAMILY,
    "mamba": mamba.FAMILY,
    "mamba2": mamba.FAMILY,
    "lfm2": lfm2.FAMILY,
    "lfm2moe": lfm2.FAMILY,
    "qwen3next": qwen3next.FAMILY,
    "qwen35": qwen3next.FAMILY,
    "qwen35moe": qwen3next.FAMILY,
    "deepseek2": deepseek2.FAMILY,
    "minicpm": replace(llama.FAMILY, optional=output_and_two_sets),
    "minicpm3": deepseek2.FAMILY,
    "glm4moe": qwen.FAMILY,
    "seed_oss": qwen.FAMILY,
    "hunyuan-dense": qwen.FAMILY,
}


def parts_of(config: ModelConfig) -> dict[str, Part]:
    """Weights of a model's graph that are parts of tensors: its family's, and those of experts."""
    return {**FAMILIES[config.architecture].parts(config), **experts.parts(config)}
