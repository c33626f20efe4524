"""The text model within a multimodal checkpoint: its fields and tensors have their own prefix, and
the vision and audio parts are ignored."""

import re
from collections.abc import Mapping

from engine.convert import rope_scaling
from engine.convert.checkpoint import Tensor
from engine.convert.family import Family
from engine.convert.fields import Fields
from engine.gguf import writer as gw

BESIDE = re.compile(
    r"(model\.)?(visual|vision_tower|audio_tower|embed_vision|embed_audio|multi_modal_projector)\..*"
)
SENSES = {"vision_config": "sees images", "audio_config": "hears"}


class TextPart(Family):
    """A family published with vision or audio parts, and without."""

    def usual_words(self, config: Fields) -> Fields:
        """The text model's fields, where there are others."""
        values = {**config.values, **config.part("text_config").values}
        return super().usual_words(Fields(values, config.place))

    def named(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        whole = re.compile(r"^(?:language_model\.|(model\.)language_model\.)")
        return super().named({whole.sub(r"\1", name): tensor for name, tensor in tensors.items()})

    def is_unused(self, name: str, config: Fields) -> bool:
        return BESIDE.fullmatch(name) is not None or super().is_unused(name, config)

    def notes(self, config: Fields) -> list[str]:
        found = super().notes(config)
        if senses := [words for name, words in SENSES.items() if config.part(name).values]:
            found.append(f"what {' and '.join(senses)} is left out: the file is of the text alone")
        return found


class PlacedText(TextPart):
    """A family whose positions are those of images: rope's pairs are shared out to their
    dimensions, in turn where nothing says so."""

    def shape(self, config: Fields) -> gw.Keys:
        found = dict(super().shape(config))
        _, turned = found["rope.dimension_count"]
        usual = [(turned // 2 + 2 - dimension) // 3 for dimension in range(3)]
        sections = rope_scaling.parameters(config).get("mrope_section", usual)
        if not isinstance(sections, list) or not all(isinstance(one, int) for one in sections):
            raise config.error(f"mrope_section must be a list of counts, got {sections!r:.80}")
        whole = [*sections, 0, 0, 0][:4]
        return {**found, "rope.dimension_sections": gw.i32s(whole)}
