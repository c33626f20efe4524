"""The converter's interface to a family: the meaning of config.json's fields, and tensors'
names."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.config import ModelConfig
from engine.convert import rope_scaling
from engine.convert.checkpoint import Tensor
from engine.convert.fields import Fields
from engine.gguf import writer as gw
from engine.metadata.architectures import ARCHITECTURES
from engine.models.table import FAMILIES as GRAPHS
from reference.formats.format import Floats

QKV = ("attn_q", "attn_k", "attn_v")
ATTENTION, NETWORK = (*QKV, "attn_output"), ("ffn_gate", "ffn_up", "ffn_down")
HEAD_NORMS = ("attn_q_norm.weight", "attn_k_norm.weight")
ALIASES = {"swish": "silu"} | dict.fromkeys(("gelu_new", "gelu_fast"), "gelu_pytorch_tanh")
BUFFER = ".rotary_emb.inv_freq"  # in old checkpoints of any family; computed here


@dataclass(frozen=True, slots=True)
class Source:
    """Where a GGUF tensor comes from.

    `name` is the checkpoint's. `head_dim`, if not 0, says that rope turns what the rows give: each
    head's are reordered as `neighbours` does. `stretches`, if there are any, are the rows [first,
    last) of the checkpoint's tensor in the order in which GGUF has them. `added` is what GGUF's
    elements have more, and `through` what they become. An `exact` matrix is stored in F32, and may
    have other dimensions in the checkpoint, `theirs`. One that has a `format` keeps it.
    """

    name: str
    dims: tuple[int, ...]
    head_dim: int = 0
    optional: bool = False
    stretches: tuple[tuple[int, int], ...] = ()
    added: float = 0.0
    through: Callable[[Floats], Floats] | None = None
    exact: bool = False
    theirs: tuple[int, ...] = ()
    format: str = ""


class Family:
    """One or more of Hugging Face's architectures that GGUF has one name for, `gguf`.

    modules      the checkpoint's names of what stands in GGUF's before .weight and .bias; {} is
                 the block's number
    alone        the same of what stands alone, and not before .weight and .bias
    words        the architecture's names of config.json's fields, by those that others have
    base         what all names but the output's begin with; a checkpoint of the model without its
                 output is saved without it
    unused       a pattern of the checkpoint's tensors that are computed here
    activation   the field of config.json that names the activation
    ties         whether the output is the embedding where config.json does not say
    part_turned  the part of a head that rope turns where config.json does not say; None: whole
                 heads, and nothing else runs
    ropes        the kinds of rope that run; none: the family has none
    text_kind    the model_type of a text's part that sets it apart from a family of the same name
    head_norms   the field of config.json that says whether queries and keys have norms by head
    biases       the parts of a block that may have biases, by the field of config.json that says so
    biased       those fields that are true where config.json does not say
    """

    architectures: ClassVar[tuple[str, ...]]
    about: ClassVar[str]
    gguf: ClassVar[str]
    modules: ClassVar[Mapping[str, str]]
    alone: ClassVar[Mapping[str, str]] = {}
    words: ClassVar[Mapping[str, str]] = {}
    base: ClassVar[str] = "model."
    unused: ClassVar[str] = ""
    activation: ClassVar[str]
    ties: ClassVar[bool] = False
    part_turned: ClassVar[float | None] = None
    ropes: ClassVar[tuple[str, ...]] = ("default", "linear", "yarn", "llama3")
    text_kind: ClassVar[str] = ""
    head_norms: ClassVar[str] = ""
    biases: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    biased: ClassVar[tuple[str, ...]] = ()

    def usual_words(self, config: Fields) -> Fields:
        """The fields under the names that other architectures use."""
        told = {
            usual: config.get(theirs)
            for usual, theirs in self.words.items()
            if config.get(theirs) is not None
        }
        return Fields({**config.values, **told}, config.place)

    def fits(self, config: Fields) -> bool:  # noqa: ARG002
        """Whether a model of these `architectures` is this family's, where several have them."""
        return True

    def there(self, config: Fields, tensors: Mapping[str, Tensor]) -> Fields:  # noqa: ARG002
        """config.json without fields about parts that the checkpoint does not have."""
        return config

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
        if not self.ropes:
            return
        if self.part_turned is None and rope_scaling.part_turned(config, 1.0) != 1:
            raise config.error("partial_rotary_factor: this family turns whole heads")
        rope_scaling.check(config, self.ropes)

    def activation_of(self, config: Fields) -> str:
        """The activation named in config.json, aliases resolved."""
        name = str(config.get(self.activation, self.usual))
        return ALIASES.get(name, name)

    @property
    def usual(self) -> str:
        """The activation of a file without the key."""
        return next(iter(ARCHITECTURES[self.gguf].activations))

    def keys(self, config: Fields) -> gw.Keys:
        """Keys for the model's sizes and constants."""
        shape = dict(self.shape(config))
        if (activation := self.activation_of(config)) != self.usual:
            shape["hidden_activation"] = gw.text(activation)
        return {f"{self.gguf}.{key}": value for key, value in shape.items()}

    def notes(self, config: Fields) -> list[str]:
        """Notes for the file's owner."""
        found, activation = rope_scaling.notes(config, self.gguf), self.activation_of(config)
        if activation != self.usual:
            said = f"its activation is {activation}"
            found.append(f"{said}: llama.cpp, of {self.gguf}, computes {self.usual}")
        return found

    def shape(self, config: Fields) -> gw.Keys:
        """Sizes and constants except the activation, by keys without the architecture. These are
        common to all families; each adds its own."""
        return {
            "context_length": gw.u32(config.count("max_position_embeddings", 2048)),
            "embedding_length": gw.u32(config.count("hidden_size")),
            "block_count": gw.u32(config.count("num_hidden_layers")),
            "attention.head_count": gw.u32(config.count("num_attention_heads")),
            "vocab_size": gw.u32(config.count("vocab_size")),
        }

    def tied(self, config: Fields) -> bool:
        """Whether the output is the embedding; a stored output matrix is then not part of the
        model."""
        return config.flag("tie_word_embeddings", self.ties)

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        """Every tensor of the GGUF file that comes from the checkpoint, in the file's order."""
        graph = GRAPHS[self.gguf]
        needed = graph.expected_tensors(model)
        told = [b for field, b in self.biases.items() if config.flag(field, field in self.biased)]
        with_bias = {part for parts in told for part in parts}
        found = {name: self._source(name, dims) for name, dims in needed.items()}
        for name, dims in graph.optional_tensors(model).items():
            if (
                (name == "output.weight" and not self.tied(config))
                or (name.endswith(".bias") and name.split(".")[-2] in with_bias)
                or (name.endswith(HEAD_NORMS) and config.flag(self.head_norms, False))
            ):
                found[name] = self._source(name, dims)
        return found

    def named(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The checkpoint's tensors by names that begin with `base`."""
        if any(name.startswith(self.base) for name in tensors):
            return tensors
        output = f"{self.modules['output']}."
        return {n if n.startswith(output) else self.base + n: t for n, t in tensors.items()}

    def computed(self, config: Fields, model: ModelConfig) -> dict[str, Floats]:
        """Vectors of the GGUF file that the checkpoint does not hold."""
        return rope_scaling.divisors(config, model.rope_dims) if self.ropes else {}

    def is_unused(self, name: str, config: Fields) -> bool:
        """Whether the conversion ignores this tensor of the checkpoint."""
        tied = self.tied(config) and name == f"{self.modules['output']}.weight"
        return tied or name.endswith(BUFFER) or re.fullmatch(self.unused, name) is not None

    def _source(self, name: str, dims: tuple[int, ...]) -> Source:
        """Of blk.3.attn_q.weight: model.layers.3.self_attn.q_proj.weight."""
        number, _, whole = name.removeprefix("blk.").partition(".")
        if whole in self.alone:
            return Source(self.alone[whole].format(number), dims)
        module, _, kind = name.rpartition(".")
        block, _, part = module.rpartition(".")
        theirs = self.modules[part].format(block.removeprefix("blk."))
        return Source(f"{theirs}.{kind}", dims)
