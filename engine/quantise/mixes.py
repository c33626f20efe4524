"""Which weight format each tensor of a model gets: llama.cpp's mixes, as tables.

A mix has one format for most matrices and rules for some roles, which name a better one for layers
that matter more. `layers` is the number of blocks; the first and the last eighth, and every third
layer between, are those that llama.cpp gives more bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gguf import LlamaFileType

from reference.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a matrix: its layer of so many, query heads per KV head, the model's number
    of experts, whether the tensor holds all of them, and the architecture."""

    layer: int
    layers: int
    grouped: int
    weighed: bool  # with an importance matrix
    experts: int = 0
    of_experts: bool = False
    architecture: str = "llama"

    @property
    def is_70b(self) -> bool:
        """80 layers whose heads share V, as in Llama 2 70B: it is small, and worth another bit. Any
        Qwen 2 of as many layers counts as such."""
        shared = self.grouped > 1 if self.architecture == "llama" else self.architecture == "qwen2"
        return self.layers == 80 and shared


Rule = Callable[[Place], str | None]  # None: the mix's own format


def always(name: str | None) -> Rule:
    return lambda _: name


def either(rule: Rule, other: Rule) -> Rule:
    return lambda p: rule(p) or other(p)


def in_first(share: int, name: str, other: str | None = None) -> Rule:
    """Layers of the first 1 / share."""
    return lambda p: name if p.layer < p.layers // share else other


def below(layer: int, name: str, other: str | None = None) -> Rule:
    return lambda p: name if p.layer < layer else other


def where_more_matters(name: str) -> Rule:
    def rule(p: Place) -> str | None:
        eighth = p.layers // 8
        matters = p.layer < eighth or p.layer >= 7 * p.layers // 8 or (p.layer - eighth) % 3 == 2
        return name if matters else None

    return rule


def if_grouped(name: str, other: str | None = None) -> Rule:
    """Four query heads or more share a KV head: K and V are small then."""
    return lambda p: name if p.grouped >= 4 else other


def if_weighed(weighed: bool, rule: Rule) -> Rule:
    return lambda p: rule(p) if p.weighed == weighed else None


@dataclass(frozen=True, slots=True)
class Mix:
    """`base` for matrices in general, and rules by role: attn_v, attn_output, ffn_down."""

    name: str
    base: str
    roles: Mapping[str, Rule] = field(default_factory=dict)
    output: str = "Q6_K"
    embedding: str | None = None

    @property
    def file_type(self) -> LlamaFileType:
        """llama.cpp's number of the mix."""
        other = {"F32": "ALL_F32", "MXFP4": "MOSTLY_MXFP4_MOE"}
        return LlamaFileType[other.get(self.name, f"MOSTLY_{self.name}")]

    def choose(self, role: str, place: Place) -> str:
        """The format of a matrix of this role."""
        falcon = place.architecture == "falcon"
        if role == "output":
            return "Q8_0" if falcon and FORMATS[self.base].block > 1 else self.output
        if self.base == "MXFP4" and place.experts:
            return "MXFP4" if place.of_experts else "Q8_0"
        if role == "token_embd":
            return self.embedding or self.base
        if role in ("fc1", "fc2") and FORMATS[self.base].block > 1:  # PowerInfer's predictors
            return "Q4_0" if self.base == "Q4_0" else "Q5_0"
        if place.experts == 8 and role in OF_EIGHT and FORMATS[self.base].block > 1:
            return OF_EIGHT[role](self)
        roles = {**self.roles, **(OF_FALCON.get(self.name, {}) if falcon else {})}
        chosen = (role in roles and roles[role](place)) or self.base
        if role == "attn_v" and place.is_70b:
            return "Q5_K" if chosen in ("Q3_K", "Q4_K") else chosen
        return chosen


FINER_OF_EIGHT = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")
# Mixtral with eight experts: attention's matrices are small in comparison.
OF_EIGHT: Mapping[str, Callable[[Mix], str]] = {
    "attn_k": lambda _: "Q8_0",
    "attn_v": lambda _: "Q8_0",
    "attn_output": lambda mix: "Q5_K" if mix.name in FINER_OF_EIGHT else mix.base,
}
SHARED = {"attn_v": if_grouped("Q5_K"), "ffn_down": if_weighed(False, in_first(8, "Q5_K"))}
LARGER = {role: where_more_matters("Q6_K") for role in ("attn_v", "ffn_down")}
# Falcon has fewer bits for the outputs of attention and networks, and more for the output head.
OF_FALCON: Mapping[str, Mapping[str, Rule]] = {
    "Q2_K": {"attn_output": always(None)},
    "Q3_K_M": {
        "attn_output": always(None),
        "ffn_down": either(in_first(16, "Q5_K"), where_more_matters("Q4_K")),
    },
    "Q3_K_L": dict.fromkeys(("attn_output", "ffn_down"), always("Q4_K")),
    "Q4_K_S": {"ffn_down": always(None)},
    "Q4_K_M": {"ffn_down": either(in_first(16, "Q6_K"), where_more_matters("Q5_K"))},
}
MIXES = {
    mix.name: mix
    for mix in (
        *(Mix(name, name, output=name) for name in ("F32", "F16", "BF16", "Q8_0")),
        Mix("Q4_0", "Q4_0", {"ffn_down": if_weighed(True, in_first(8, "Q4_1"))}),
        Mix("Q4_1", "Q4_1"),
        Mix("Q5_0", "Q5_0", {"ffn_down": if_weighed(True, in_first(8, "Q5_1"))}),
        Mix("Q5_1", "Q5_1"),
        Mix("Q2_K_S", "Q2_K", {"attn_v": if_grouped("Q4_K"), "ffn_down": in_first(8, "Q4_K")}),
        Mix("Q2_K", "Q2_K", {
            "attn_v": if_grouped("Q4_K", "Q3_K"),
            "attn_output": always("Q3_K"),
            "ffn_down": always("Q3_K"),
        }),
        Mix("Q3_K_S", "Q3_K"),
        Mix("Q3_K_M", "Q3_K", {
            "attn_v": below(2, "Q5_K", "Q4_K"),
            "attn_output": always("Q4_K"),
            "ffn_down": in_first(16, "Q5_K", "Q4_K"),
        }),
        Mix("Q3_K_L", "Q3_K", dict.fromkeys(("attn_v", "attn_output", "ffn_down"), always("Q5_K"))),
        Mix("Q4_K_S", "Q4_K", {"attn_v": below(4, "Q5_K"), "ffn_down": in_first(8, "Q5_K")}),
        Mix("Q4_K_M", "Q4_K", LARGER),
        Mix("Q5_K_S", "Q5_K"),
        Mix("Q5_K_M", "Q5_K", LARGER),
        Mix("Q6_K", "Q6_K"),
        Mix("IQ4_NL", "IQ4_NL", SHARED),
        Mix("IQ4_XS", "IQ4_XS", SHARED),
        Mix("TQ1_0", "TQ1_0", embedding="Q4_K"),
        Mix("TQ2_0", "TQ2_0", embedding="Q4_K"),
        # llama.cpp keeps MXFP4 to the experts of mixtures, as `choose` does; a model without any
        # may want it too
        Mix("MXFP4", "MXFP4", output="Q8_0"),
    )
}  # fmt: skip
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

# Substitutes where rows are no multiple of a block of 256.
NARROWER = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0",
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip


def fitting(name: str, elements: int) -> str:
    """The format itself, or its substitute for rows of so many elements."""
    if elements % FORMATS[name].block:
        name = NARROWER.get(name, "F16")
    return "F16" if elements % FORMATS[name].block else name
