"""Every Hugging Face architecture that the converter knows."""

from engine.convert.family import Family
from engine.convert.fields import Fields
from engine.convert.models import deepseek, dense, experts, gemma4, gpt_oss, qwen3next

FAMILIES: tuple[Family, ...] = (
    *dense.FAMILIES,
    *experts.FAMILIES,
    *deepseek.FAMILIES,
    *gemma4.FAMILIES,
    *gpt_oss.FAMILIES,
    *qwen3next.FAMILIES,
)


def family_of(config: Fields) -> Family:
    """The family of config.json's `architectures`."""
    names = config.get("architectures", [])
    if not isinstance(names, list) or len(names) != 1:
        raise config.error(f"architectures must name one, got {names!r}")
    found = [family for family in FAMILIES if names[0] in family.architectures]
    kind = config.part("text_config").get("model_type", "")
    for family in (*(one for one in found if one.text_kind == kind), *found):
        return family
    known = ", ".join(dict.fromkeys(name for one in FAMILIES for name in one.architectures))
    raise config.error(f"architecture {names[0]!r} is not known; known are {known}")
