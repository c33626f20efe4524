"""Every Hugging Face architecture that the converter knows."""

from engine.convert.family import Family
from engine.convert.fields import Fields
from engine.convert.models import deepseek, dense, experts, gemma4, gpt_oss, qwen3next
from engine.metadata.missing import MISSING

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
    text = config.part("text_config").get("model_type", "")
    for family in (*(one for one in found if one.text_kind == text), *found):
        return family
    plain = {name.replace("-", "").replace("_", ""): op for name, op in MISSING.items()}
    kind = str(config.get("model_type", "")).removesuffix("_text")
    op = plain.get(kind.replace("_", ""))
    why = f"which is missing {op}" if op else "which is none of --print-supported-models"
    raise config.error(f"architecture is {names[0]!r}, {why}")
