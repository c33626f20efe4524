"""Models and folders that tests compare with llama.cpp, as listed on the page of families."""

from dataclasses import fields, replace

from conformance.support.models.small_families import (
    SUBJECTS,
    SmallCommandR,
    SmallDeepSeek,
    SmallFalcon,
    SmallGemma4,
    SmallGLM,
    SmallGlmMoe,
    SmallGPT2,
    SmallGptOss,
    SmallKin,
    SmallMixture,
    SmallNeoX,
    SmallOLMo,
    SmallPhi,
    SmallQwen,
)
from conformance.support.models.small_models import Small
from conformance.support.models.small_recurrent import RECURRENT

# Folders of transformers that `assay convert` reads, by name in family_configs.py.
ON_FOLDERS = ("gpt-oss", "Nemotron", "OLMo 3", "OLMo 3, YaRN", "OLMo 3, other windows",
              "EXAONE 3",
              "EXAONE 4, of 64 layers", "EXAONE 4, no windows", "Seed-OSS", "Command R7B",
              "Command R+, of 64 layers", "DeepSeek-V2", "DeepSeek-V2, YaRN", "DeepSeek V3",
              "MiniCPM 3", "ERNIE 4.5, experts", "GLM 4.5, experts",
              "GLM 4.5, experts, no biases and norms, groups", "Qwen 3 Next",
              "Qwen 3.5", "Qwen 3.5, experts", "Arcee AFM", "Hunyuan, tied, an alpha",
              "dots.llm1", "MiniMax M2", "Hunyuan, experts, tied, an alpha", "Qwen 2 VL, text",
              "Qwen 3 VL, text", "Qwen 3 VL, text, experts",
              "LFM 2, experts", "Granite 4",
              "Granite 4, attention alone", "Granite 4, attention alone, experts")  # fmt: skip
TANH_FOLDERS = ("Gemma 3, stretched, untied, a cap",
                "Gemma 4, keys alone, no embeddings of layers, untied")  # fmt: skip
# For these llama.cpp computes GELU's tanh form from a table in F16.
TANH = ("falcon", "gptneox", "phi2", "starcoder2", "gpt2", "bloom", "mpt", "gemma", "gemma2",
        "gemma3", "gemma4")  # fmt: skip
# Files in F32.
AGREED = (
    SmallFalcon(kv_heads=1),
    SmallFalcon(two_norms=True, kv_heads=2),
    SmallNeoX(),
    SmallNeoX(parallel=False),
    SmallNeoX(architecture="phi2", fused=True),
    SmallNeoX(architecture="starcoder2", parallel=False, kv_heads=2),
    SmallNeoX(architecture="stablelm"),
    SmallNeoX(architecture="stablelm", kv_heads=2, head_norms=True),
    SmallNeoX(architecture="nemotron", parallel=False, kv_heads=2),
    SmallNeoX(architecture="nemotron", parallel=False, biases=True),
    SmallDeepSeek(scale=2.5),
    SmallDeepSeek(joined=True, scale=2.5),
    SmallDeepSeek(q_rank=0, blocks=27, nope=16, turned=16, kv_rank=48),  # 27: it is the Lite
    SmallGPT2(),
    SmallGPT2(architecture="bloom"),
    SmallGPT2(architecture="mpt", steep=3.0, biases=True),
    *(SUBJECTS[name] for name in ("Gemma, wide heads", "Gemma 2", "Gemma 3")),
    SmallGemma4(blocks=3, shared=0, keys_alone=True),
    SmallGemma4(blocks=3, shared=0, per_layer=0),
    *(SUBJECTS[name] for name in ("Qwen 2", "Qwen 3, wide heads", "SmolLM 3", "Granite")),
    *(SUBJECTS[name] for name in ("ERNIE 4.5", "GLM 4", "Phi 3", "OLMo 2", "EXAONE 4")),
    *(SUBJECTS[name] for name in ("Seed-OSS", "Command R", "Ministral 3", "Arcee", "Hunyuan")),
    *(SUBJECTS[name] for name in ("InternLM 2", "MiniCPM", "EXAONE 3", "Qwen 2 VL", "Qwen 3 VL")),
    SmallKin(architecture="minicpm", long=True, context=256),
)
MIXTURES = (
    SmallMixture(architecture="llama", width=96),
    SmallMixture(architecture="llama", width=96, experts=8, used=2, head_dim=24),
    *(SUBJECTS[name] for name in ("Qwen 2, experts", "Qwen 3, experts")),
    SmallMixture(experts=12, used=4, groups=4, kept=2),
    SmallMixture(architecture="olmoe", experts=9, used=2, kv_heads=4, width=96),
    SmallMixture(architecture="granitemoe", tied=True, width=96),
    SmallGptOss(width=28),
    SmallGptOss(window=64, blocks=2, experts=8, used=4, seed=1),
    SmallMixture(architecture="granitemoe", width=96, shared=40, seed=1),
    *(SUBJECTS[name] for name in ("DeepSeek V3", "GLM 4.5, experts", "ERNIE 4.5, experts")),
    *(SUBJECTS[name] for name in ("Qwen 3 VL, experts", "dots.llm1")),
    SmallMixture(architecture="minimax-m2", width=96, sigmoid=True),
    SmallMixture(architecture="hunyuan-moe", width=96, shared=52),
)
# Files in F16 and Q8_0, compared with the formula that rounds activations as llama.cpp does.
ROUNDED = (
    SmallFalcon(two_norms=True, kv_heads=2),
    *(SmallQwen(architecture=name) for name in ("qwen2", "qwen3")),
    SmallNeoX(),
    SmallNeoX(architecture="phi2", fused=True),
    SmallNeoX(architecture="starcoder2", parallel=False, kv_heads=2),
    SmallNeoX(architecture="stablelm"),
    SmallNeoX(architecture="nemotron", parallel=False),
    *(SmallGPT2(architecture=name) for name in ("gpt2", "bloom", "mpt")),
    SmallKin(architecture="smollm3", blocks=5),
    *(SmallKin(architecture=name) for name in ("granite", "ernie4_5")),
    SmallOLMo(), SmallOLMo(architecture="exaone4"), SmallQwen(architecture="seed_oss"),
    SmallGLM(), SmallPhi(), SmallCommandR(),
    SmallCommandR(architecture="cohere2", blocks=5),
    *(SmallMixture(architecture=name, width=96) for name in ("llama", "qwen3moe", "granitemoe")),
    SmallMixture(architecture="qwen2moe", width=96, shared=64),
    SmallGptOss(width=96), SmallGptOss(width=96, seed=2), SmallGptOss(width=96, seed=5),
    SmallGlmMoe(),
    *(RECURRENT[name] for name in ("Mamba", "Mamba 2", "LFM 2", "Qwen 3.5", "Qwen 3.5, experts")),
    RECURRENT["Qwen 3 Next, tied, F16"],
)  # fmt: skip


def in_superblocks(small: Small) -> Small:
    """The model in F32, with rows of whole superblocks of 256 where sizes are free."""
    sizes = {"hidden": 256, "ffn": 256, "head_dim": 64, "format": "F32", "window_dim": 64,
             "width": 256, "q_rank": 256, "kv_rank": 256, "nope": 32, "turned": 32, "value": 64,
             "per_layer": 256}  # fmt: skip
    if isinstance(small, SmallMixture):
        sizes["shared"] = 256
    if small.architecture.startswith("qwen3") and not isinstance(small, SmallQwen | SmallMixture):
        sizes |= {"state": 64, "rank": 4, "groups": 2}  # delta nets
    own = {field.name for field in fields(small) if getattr(small, field.name)}
    return replace(small, **{name: size for name, size in sizes.items() if name in own})


# One of each architecture that llama.cpp supports, for files in Q8_0 and Q4_K_M.
IN_SUPERBLOCKS = {
    small.architecture: in_superblocks(small)
    for small in reversed((*ROUNDED, *AGREED, *MIXTURES, *RECURRENT.values(), *SUBJECTS.values()))
    if small.architecture not in ("opt", "bamboo", "qwen2vl")  # of the last it has no eps
}
