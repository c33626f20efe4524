"""What the converter asks of a family: what config.json means, and what its tensors are called."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine import gguf_writer as gw
from engine.config import ARCHITECTURES, ModelConfig
from engine.convert import rope_scaling
from engine.convert.checkpoint import Tensor
from engine.convert.fields import Fields
from engine.models.table import FAMILIES as GRAPHS
from reference.formats.format import Floats


@dataclass(frozen=True, slots=True)
class Source:
    """Where a GGUF tensor comes from.

    `name` is the checkpoint's. `head_dim`, if not 0, says that rope turns what the rows give: each
    head's are reordered as `neighbours` does. `stretches`, if there are any, are the rows [first,
    last) of the checkpoint's tensor in the order in which GGUF has them.
    """

    name: str
    dims: tuple[int, ...]
    head_dim: int = 0
    optional: bool = False
    stretches: tuple[tuple[int, int], ...] = ()


class Family:
    """One or more of Hugging Face's architectures that GGUF has one name for, `gguf`.

    modules      the checkpoint's names of what stands in GGUF's before .weight and .bias; {} is
                 the block's number
    base         what all names but the output's begin with; a checkpoint of the model without its
                 output is saved without it
    unused       a pattern of the checkpoint's tensors that are computed here
    activation   the field of config.json that names the activation
    ties         whether the output is the embedding where config.json does not say
    """

    architectures: ClassVar[tuple[str, ...]]
    about: ClassVar[str]
    gguf: ClassVar[str]
    modules: ClassVar[Mapping[str, str]]
    base: ClassVar[str] = "model."
    unused: ClassVar[str] = ""
    activation: ClassVar[str]
    ties: ClassVar[bool] = False

    def check(self, config: Fields) -> None:
        """Refuse what the graph does not compute."""
        if method := config.part("quantization_config").get("quant_method"):
            raise config.error(f"its weights are quantised already ({method}): want float weights")
        known = ARCHITECTURES[self.gguf].activations
        if self.activation_of(config) not in known:
            raise config.error(
                f"{self.activation} is {self.activation_of(config)!r};"
                f" this family runs {', '.join(known)}"
            )

    def activation_of(self, config: Fields) -> str:
        """The activation as config.json names it."""
        return str(config.get(self.activation, self.usual))

    @property
    def usual(self) -> str:
        """The activation that a file without the key has."""
        return next(iter(ARCHITECTURES[self.gguf].activations))

    def keys(self, config: Fields) -> gw.Keys:
        """The model's sizes and constants."""
        shape = dict(self.shape(config))
        if (activation := self.activation_of(config)) != self.usual:
            shape["hidden_activation"] = gw.text(activation)
        return {f"{self.gguf}.{key}": value for key, value in shape.items()}

    def notes(self, config: Fields) -> list[str]:
        """What the file's owner should know."""
        found, activation = rope_scaling.notes(config, self.gguf), self.activation_of(config)
        if activation != self.usual:
            said = f"its activation is {activation}"
            found.append(f"{said}: llama.cpp, of {self.gguf}, computes {self.usual}")
        return found

    def shape(self, config: Fields) -> gw.Keys:
        """The same without the activation, by keys without the architecture."""
        raise NotImplementedError

    def tied(self, config: Fields) -> bool:
        """Whether the output is the embedding; a stored one is then none of the model's."""
        return config.flag("tie_word_embeddings", self.ties)

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        """Every tensor of the GGUF file that comes from the checkpoint, in the file's order."""
        graph = GRAPHS[self.gguf]
        needed = graph.expected_tensors(model)
        found = {name: self._source(name, dims) for name, dims in needed.items()}
        for name, dims in graph.optional_tensors(model).items():
            if name == "output.weight" and not self.tied(config):
                found[name] = self._source(name, dims)
            elif name.endswith(".bias"):
                found[name] = self._source(name, dims, optional=True)
        return found

    def named(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The checkpoint's tensors by names that begin with `base`."""
        if any(name.startswith(self.base) for name in tensors):
            return tensors
        output = f"{self.modules['output']}."
        return {n if n.startswith(output) else self.base + n: t for n, t in tensors.items()}

    def computed(self, config: Fields, model: ModelConfig) -> dict[str, Floats]:
        """Vectors of the GGUF file that the checkpoint does not hold."""
        divisors = rope_scaling.divisors(config, model.head_dim)
        return {} if divisors is None else {"rope_freqs.weight": divisors}

    def is_unused(self, name: str, config: Fields) -> bool:
        """Whether a tensor of the checkpoint has no place in the file, and needs none."""
        tied = self.tied(config) and name == f"{self.modules['output']}.weight"
        return tied or re.fullmatch(self.unused, name) is not None

    def _source(self, name: str, dims: tuple[int, ...], optional: bool = False) -> Source:
        """Of blk.3.attn_q.weight: model.layers.3.self_attn.q_proj.weight."""
        module, _, kind = name.rpartition(".")
        block, _, part = module.rpartition(".")
        theirs = self.modules[part].format(block.removeprefix("blk."))
        return Source(f"{theirs}.{kind}", dims, optional=optional)
