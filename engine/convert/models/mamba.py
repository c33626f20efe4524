"""The families of engine/models/mamba.py."""

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np

from engine.config import ModelConfig
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.gguf import writer as gw
from engine.recurrent import is_small
from reference.formats.format import Floats

# Bounds of Mamba 2's steps; infinity as in Python's JSON and transformers'.
NO_LIMITS = [0.0, math.inf], [0.0, {"__float__": "Infinity"}]
CONTEXT = 2**20  # a context length on which nothing depends: llama.cpp's


def decay(logarithms: Floats) -> Floats:
    """A, from its logarithm in checkpoints."""
    return np.asarray(-np.exp(logarithms))


def check_steps(config: Fields) -> None:
    """Refuse bounds of Mamba 2's steps."""
    limits = config.get("time_step_limit", [0.0, math.inf])
    if limits not in NO_LIMITS:
        raise config.error(f"time_step_limit is {limits}; this family's steps have no limits")


def of_states(name: str, source: Source, flat: bool) -> Source:
    """The source of a tensor, as it is in the checkpoint: if `flat`, matrices of a recurrent block
    are vectors there."""
    if not is_small(name):
        return source
    theirs = source.dims
    if name.endswith("ssm_conv1d.weight"):
        theirs = source.dims[0], 1, source.dims[1]
    elif flat:
        theirs = (math.prod(source.dims),)
    through = decay if name.endswith(".ssm_a") else None
    return replace(source, exact=True, theirs=theirs, through=through)


class Mamba(Family):
    """Mamba, whose checkpoint has its decay's logarithm and a convolution of one channel each."""

    architectures = ("MambaForCausalLM",)
    about = "Mamba"
    gguf = "mamba"
    modules: ClassVar = {
        "token_embd": "backbone.embeddings",
        "output_norm": "backbone.norm_f",
        "output": "lm_head",
        "attn_norm": "backbone.layers.{}.norm",
        "ssm_in": "backbone.layers.{}.mixer.in_proj",
        "ssm_conv1d": "backbone.layers.{}.mixer.conv1d",
        "ssm_x": "backbone.layers.{}.mixer.x_proj",
        "ssm_dt": "backbone.layers.{}.mixer.dt_proj",
        "ssm_out": "backbone.layers.{}.mixer.out_proj",
    }
    alone: ClassVar = {
        "ssm_a": "backbone.layers.{}.mixer.A_log",
        "ssm_d": "backbone.layers.{}.mixer.D",
    }
    flat = False  # whether a matrix in GGUF is a vector in the checkpoint
    base = "backbone."
    activation = "hidden_act"
    ropes = ()
    ties = True

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.flag("use_bias", False):
            raise config.error("use_bias is true; this family has no biases of projections")
        if not config.flag("use_conv_bias", True):
            raise config.error("use_conv_bias is false; this family's convolution has a bias")

    def shape(self, config: Fields) -> gw.Keys:
        hidden = config.count("hidden_size")
        rank = config.get("time_step_rank", "auto")
        return {
            "context_length": gw.u32(CONTEXT),
            "embedding_length": gw.u32(hidden),
            "feed_forward_length": gw.u32(0),
            "attention.head_count": gw.u32(0),
            "block_count": gw.u32(config.count("num_hidden_layers")),
            "vocab_size": gw.u32(config.count("vocab_size")),
            "ssm.conv_kernel": gw.u32(config.count("conv_kernel", 4)),
            "ssm.inner_size": gw.u32(self.inner(config)),
            "ssm.state_size": gw.u32(config.count("state_size", 16)),
            "ssm.time_step_rank": gw.u32(
                -(-hidden // 16) if rank == "auto" else config.count("time_step_rank")
            ),
            "attention.layer_norm_rms_epsilon": gw.f32(config.real("layer_norm_epsilon", 1e-5)),
            "ssm.dt_b_c_rms": gw.boolean(False),
        }

    def inner(self, config: Fields) -> int:
        return config.count("expand", 2) * config.count("hidden_size")

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        found = super().sources(config, model)
        return {name: of_states(name, source, self.flat) for name, source in found.items()}


class Mamba2(Mamba):
    """Mamba 2, whose heads have one decay each."""

    architectures = ("Mamba2ForCausalLM",)
    about = "Mamba 2, Codestral Mamba"
    gguf = "mamba2"
    modules: ClassVar = {**Mamba.modules, "ssm_norm": "backbone.layers.{}.mixer.norm"}
    alone: ClassVar = {**Mamba.alone, "ssm_dt.bias": "backbone.layers.{}.mixer.dt_bias"}
    flat = True
    ties = False

    def check(self, config: Fields) -> None:
        super().check(config)
        check_steps(config)

    def shape(self, config: Fields) -> gw.Keys:
        found = {**super().shape(config)}
        del found["ssm.dt_b_c_rms"]
        return {
            **found,
            "ssm.state_size": gw.u32(config.count("state_size", 128)),
            "ssm.time_step_rank": gw.u32(self.inner(config) // config.count("head_dim", 64)),
            "ssm.group_count": gw.u32(config.count("n_groups", 8)),
        }
