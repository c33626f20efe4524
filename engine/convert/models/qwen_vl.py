"""Qwen 2 and 3 that see images, of which the text is converted. A text's tokens have one position
in all dimensions of an image's, so that rope is plain."""

from collections.abc import Mapping

from engine.convert.checkpoint import Tensor
from engine.convert.family import Family
from engine.convert.fields import Fields
from engine.convert.models.experts import Qwen3Moe, in_halves, turned
from engine.convert.models.qwen import Qwen2, Qwen3
from engine.convert.text_part import PlacedText
from engine.gguf import writer as gw
from engine.torch_file import StoredTensor


class Qwen2VL(PlacedText, Qwen2):
    """Qwen 2 whose positions are an image's."""

    architectures = ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")
    about = "the text part of Qwen 2 VL and 2.5 VL"
    gguf = "qwen2vl"


class Deep(PlacedText):
    """A family that adds images to what its first layers give, too; the file says to how many, for
    programs that let it see."""

    def shape(self, config: Fields) -> gw.Keys:
        seen = config.part("vision_config")
        layers = seen.get("deepstack_visual_indexes", [])
        if not isinstance(layers, list):
            raise seen.error(f"deepstack_visual_indexes must be a list, got {layers!r:.80}")
        return {**super().shape(config), "n_deepstack_layers": gw.u32(len(layers))}


class Qwen3VL(Deep, Qwen3):
    """Qwen 3 whose positions are an image's."""

    architectures = ("Qwen3VLForConditionalGeneration",)
    about = "the text part of Qwen 3 VL, dense"
    gguf = "qwen3vl"


class Qwen3VLMoe(Deep, Qwen3Moe):
    """Qwen 3 of experts, gates and ups as one tensor, with the input dimension first in what is
    published, and last in what transformers may save."""

    architectures = ("Qwen3VLMoeForConditionalGeneration",)
    about = "the text part of Qwen 3 VL, of experts"
    gguf = "qwen3vlmoe"
    normed = ""  # always

    def named(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        found = dict(super().named(tensors))
        for name in [name for name in found if name.endswith(".experts.gate_up_proj")]:
            other = name.replace("gate_up_proj", "down_proj")
            both, down = found[name], found.get(other)
            if not isinstance(both, StoredTensor) or not isinstance(down, StoredTensor):
                continue
            if len(both.dims) == len(down.dims) == 3 and both.dims[1] == down.dims[2]:
                found |= {name: turned(both), other: turned(down)}
        return in_halves(found)


FAMILIES: tuple[Family, ...] = (Qwen2VL(), Qwen3VL(), Qwen3VLMoe())
