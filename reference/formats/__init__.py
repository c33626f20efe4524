"""Weight formats: how elements become bytes. `FORMATS` lists them all by their GGUF names."""

from reference.formats.blocks32 import Q4_0, Q8_0
from reference.formats.floats import BF16, F16, F32
from reference.formats.format import Format

FORMATS: dict[str, Format] = {f.name: f for f in (F32, F16, BF16, Q8_0, Q4_0)}

__all__ = ["FORMATS", "Format"]
