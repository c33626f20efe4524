"""Weight formats: how elements are quantised to bytes. `FORMATS` lists them by their GGUF names."""

from reference.formats.blocks32 import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from reference.formats.codebooks import IQ4_NL, IQ4_XS, MXFP4
from reference.formats.floats import BF16, F16, F32
from reference.formats.format import Format
from reference.formats.grid_formats import IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS
from reference.formats.superblocks import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
from reference.formats.ternary import TQ1_0, TQ2_0

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K,
        IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4,
    )
}  # fmt: skip

__all__ = ["FORMATS", "Format"]
