"""Every model family the engine runs, by what GGUF calls its architecture."""

from collections.abc import Mapping

from engine.models import falcon, llama, opt
from engine.models.family import Family

FAMILIES: Mapping[str, Family] = {"llama": llama, "bamboo": llama, "falcon": falcon, "opt": opt}
