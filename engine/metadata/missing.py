"""GGUF architectures that do not run, and the op that each is missing. Derived from llama.cpp's
graphs; for image and sound models, from their files' contents."""

from collections.abc import Mapping
from typing import Final

FAMILY: Final = "a family file (its ops are here)"
_BY_OP: Final[tuple[tuple[str, str], ...]] = (
    (
        "attention that sees the tokens behind",
        "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert"
        " gemma-embedding llama-embed dream llada llada-moe rnd1",
    ),
    ("relative position bias and attention to an encoder's tokens", "t5 t5encoder"),
    ("rope of several positions a token", "paddleocr hunyuan_vl"),
    ("experts that only an image's tokens meet", "cogvlm"),
    ("an encoder of images", "clip"),
    ("a decoder of sound", "wavtokenizer-dec qwen3tts pockettts"),
    ("RWKV 6's time mixing", "rwkv6 rwkv6qwen2"),
    ("RWKV 7's time mixing", "rwkv7 arwkv7"),
    ("a delta net whose decay is each channel's own", "kimi-linear kimi-k3 bailingmoe3"),
    ("an SSM scan behind norms of dt, B and C", "jamba plamo2"),
    ("attention in chunks of the context", "llama4"),
    ("a temperature of queries that rope turns in part", "mistral4"),
    ("hyper-connections", "qwen4exp"),
    ("adapters that each token chooses", "graniteswitch"),
    ("blocks that run several times", "hrm_text"),
    (
        "an indexer that chooses the tokens attention sees",
        "glm-dsa glm5-next deepseek32 deepseek4 hy_v4 dots3note",
    ),
    ("attention to chosen blocks", "minimax-m3"),
    ("attention without softmax", "minimax-01"),
    ("drafts of another model's hidden states", "eagle3 dflash gemma4-assistant"),
    ("bounds of queries, keys and values", "dbrx olmo"),
    ("AltUp, Laurel and a sparse GELU", "gemma3n"),
    ("xIELU", "apertus"),
    ("a soft cap of the router's logits", "grok"),
    ("scales of ternary matrices", "bitnet"),
    ("experts that are shared by groups of others", "grovemoe"),
    ("attention of other heads in each block", "deci openelm mimo2 step35 laguna spark2_5"),
    (
        FAMILY,
        "baichuan gptj starcoder refact qwen phimoe plamo plamo3 codeshell orion"
        " xverse arctic deepseek deepseek2-ocr chatglm jais jais2 nemotron_h"
        " nemotron_h_moe exaone-moe chameleon plm bailingmoe"
        " bailingmoe2 afmoe falcon-h1"
        " smallthinker pangu-embedded maincoder mellum nanbeige cohere2moe"
        " hy_v3 granite_swa maple muse-glimmer talkie",
    ),
)
MISSING: Final[Mapping[str, str]] = {name: op for op, names in _BY_OP for name in names.split()}
