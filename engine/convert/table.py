"""Every Hugging Face architecture that the converter knows."""

from engine.convert.family import Family
from engine.convert.fields import Fields
from engine.convert.models import (
    deepseek,
    experts,
    gemma4,
    gpt_oss,
    granite_hybrid,
    qwen3next,
    qwen_vl,
)
from engine.convert.models.cohere import Cohere, Cohere2
from engine.convert.models.falcon import Falcon
from engine.convert.models.gemma import Gemma, Gemma2, Gemma3
from engine.convert.models.gpt2 import GPT2, MPT, Bloom
from engine.convert.models.lfm2 import Lfm2, Lfm2Moe
from engine.convert.models.llama import Arcee, Granite, Llama, Ministral3, Mistral, SmolLM3
from engine.convert.models.mamba import Mamba, Mamba2
from engine.convert.models.neox import GPTNeoX, Nemotron, Phi2, StableLM, StarCoder2
from engine.convert.models.opt import OPT
from engine.convert.models.post_norm import Exaone4, Glm4, Olmo2, Olmo3
from engine.convert.models.qwen import Ernie, Exaone, Hunyuan, Phi3, Qwen2, Qwen3, SeedOss
from engine.metadata.missing import MISSING

FAMILIES: tuple[Family, ...] = (
    Llama(), Mistral(), Ministral3(), Qwen2(), Qwen3(), Gemma(), Gemma2(), Gemma3(), SmolLM3(),
    Arcee(), Granite(), Olmo2(), Olmo3(), Exaone(), Exaone4(), Hunyuan(), SeedOss(), Ernie(),
    Glm4(), Phi3(), Cohere(), Cohere2(), Falcon(), OPT(), Phi2(), GPTNeoX(), StarCoder2(),
    StableLM(), Nemotron(), GPT2(), Bloom(), MPT(), Mamba(), Mamba2(), Lfm2(), Lfm2Moe(),
    *experts.FAMILIES,
    *deepseek.FAMILIES,
    *gemma4.FAMILIES,
    *gpt_oss.FAMILIES,
    *granite_hybrid.FAMILIES,
    *qwen3next.FAMILIES,
    *qwen_vl.FAMILIES,
)  # fmt: skip


def family_of(config: Fields) -> Family:
    """The family of config.json's `architectures`."""
    names = config.get("architectures", [])
    if not isinstance(names, list) or len(names) != 1:
        raise config.error(f"architectures must name one, got {names!r}")
    found = [family for family in FAMILIES if names[0] in family.architectures]
    text = config.part("text_config").get("model_type", "")
    for family in (*(one for one in found if one.text_kind == text), *found):
        if family.fits(config):
            return family
    plain = {name.replace("-", "").replace("_", ""): op for name, op in MISSING.items()}
    kind = str(config.get("model_type", "")).removesuffix("_text")
    op = plain.get(kind.replace("_", ""))
    why = f"which is missing {op}" if op else "which is none of --print-supported-models"
    raise config.error(f"architecture is {names[0]!r}, {why}")
