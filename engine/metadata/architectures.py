"""What the name of a GGUF file's architecture says of the model: every one that runs has a row."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from reference.models.opt import UNUSED


@dataclass(frozen=True, slots=True)
class Routing:
    """How a family's mixtures of experts are, where the file does not say.

    scores    the op that makes scores of the router's logits; "": logits are chosen by, and softmax
              is over those of the chosen
    normed    whether weights are divided by their sum
    part      an expert's width is that of the network by how many are used, not its own
    gated     whether a gate weighs a shared network
    lone      the op of scores with which groups would go by their best expert, not by the sum of
              two, which is not supported; "": there is none
    counted   whether the file counts how many experts a shared network is as wide as, and how many
              of the first blocks are dense
    listed    whether it may list which blocks have experts
    """

    scores: str = "softmax"
    normed: bool = True
    part: bool = False
    gated: bool = False
    lone: str = ""
    counted: bool = False
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Traits:
    """What the name of an architecture says.

    activations   the op of the feed-forward network by what the key hidden_activation calls it;
                  the first is meant where that key is missing
    norm_eps      the key of its norms' eps, and the value where that is missing, if there is one
    no_position   rows of a table of learned positions before that of position 0; None: none learned
    fused_qkv     whether queries, keys and values are always rows of one tensor
    alibi         how steep ALiBi is where the key attention.max_alibi_bias is missing; 0: none
    two_orders    whether the key use_parallel_residual says how a block's two halves follow
    no_rope       every so many-th block turns nothing by its position; 0: all do
    scales        the keys of `Scales` that it has
    divides       the logits are divided by what the file says, not multiplied
    windows       the last of every so many blocks reaches the whole context, the others have a
                  window, if the file has one; 0: all have it
    window        the tokens of a window where the file does not say; None: it has to
    windows_rotate  whether rope turns in blocks with a window alone, if any has one
    window_base   base of rope in blocks with a window where the file does not say: theirs is not
                  scaled then; 0: it is that of the others; None: the file may not say
    unscaled      theirs is not scaled, and the base is that of the others where it is not told
    score_cap     the soft cap of attention's scores where the file does not say; None: it may not
    logit_cap     the same of the logits
    ssm           whether its blocks are recurrent, and none attends
    rope_told     whether the key rope.scaling.finetuned says that blocks have rope
    shortconv     whether blocks without heads of keys are short convolutions
    hybrid        whether blocks without heads of keys are Mamba 2's
    delta         whether blocks are gated delta nets, but for every fourth or those that are told
    by_width      blocks of the model whose scores are scaled by hidden / heads, not by head_dim,
                  where the file does not say; None: none are
    experts       how its feed-forward networks are mixtures, where the file has an expert_count
    latent        whether keys and values come out of a latent vector, which the cache holds
    halves        whether rope turns halves of a head's latent attention, not neighbours
    latent_eps    of the norms of latent vectors, where it is not that of the others
    mup           whether the scales are those of MiniCPM 1B to 4B where the file does not say
    by_block      whether sizes differ between blocks (blocks.py), and scores are not scaled
    mtp           whether multi-token prediction blocks may follow the others
    tempered      whether attention's temperature may change with a query's position
    sections      how a head's pairs are shared out to the dimensions of an image's positions:
                  "interleaved", or "in stretches"; "": positions have one dimension
    """

    activations: Mapping[str, str]
    norm_eps: tuple[str, float | None] = ("attention.layer_norm_epsilon", None)
    no_position: int | None = None
    fused_qkv: bool = False
    alibi: float = 0.0
    two_orders: bool = False
    no_rope: int = 0
    scales: tuple[str, ...] = ()
    divides: bool = False
    windows: int = 0
    window: int | None = 0
    windows_rotate: bool = False
    window_base: float | None = None
    unscaled: bool = False
    score_cap: float | None = None
    logit_cap: float | None = None
    by_width: int | None = None
    ssm: bool = False
    experts: Routing | None = None
    rope_told: bool = False
    shortconv: bool = False
    hybrid: bool = False
    delta: bool = False
    latent: bool = False
    halves: bool = False
    latent_eps: float | None = None
    mup: bool = False
    by_block: bool = False
    mtp: bool = False
    tempered: bool = False
    sections: str = ""


GELU = {"gelu": "gelu_erf", "gelu_pytorch_tanh": "gelu"}
TANH = {"gelu_pytorch_tanh": "gelu", "gelu": "gelu_erf"}
RMS_EPS = ("attention.layer_norm_rms_epsilon", None)
LLAMA = Traits(activations={"silu": "swiglu", "relu": "reglu"}, norm_eps=RMS_EPS)
GRANITE = replace(
    LLAMA,
    scales=("embedding_scale", "residual_scale", "attention.scale", "logit_scale"),
    divides=True,
    rope_told=True,
)
MINICPM = replace(
    LLAMA, scales=("embedding_scale", "residual_scale", "logit_scale"), divides=True, mup=True
)
GEMMA = Traits(activations={"gelu_pytorch_tanh": "geglu"}, norm_eps=RMS_EPS)
GEMMA2 = replace(GEMMA, scales=("attention.scale",))
DELTA = replace(LLAMA, delta=True, mtp=True, sections="interleaved")
ARCHITECTURES: Mapping[str, Traits] = {
    "llama": replace(LLAMA, experts=Routing()),  # Mixtral, arXiv 2401.04088
    "mistral3": replace(LLAMA, tempered=True),
    "bamboo": Traits(activations={"relu": "drelu"}, norm_eps=RMS_EPS),  # arXiv 2406.05955
    "falcon": Traits(activations=GELU | {"relu": "relu"}, fused_qkv=True),
    # PowerInfer, whose architecture it is, writes no eps
    "opt": Traits(
        activations={"relu": "relu"} | GELU,
        norm_eps=("attention.layer_norm_epsilon", 1e-5),
        no_position=UNUSED,
    ),
    "gemma": GEMMA,
    "gemma2": replace(
        GEMMA2, windows=2, window=4096, window_base=0.0, score_cap=50.0, logit_cap=30.0, by_width=46
    ),
    "gemma3": replace(GEMMA2, windows=6, window_base=10000.0, logit_cap=0.0, by_width=62),
    "gemma4": replace(
        GEMMA, windows=6, window=None, window_base=10000.0, logit_cap=30.0, by_block=True,
        experts=Routing(),
    ),
    "qwen2": LLAMA,
    "qwen2vl": replace(LLAMA, sections="in stretches"),
    "qwen3": LLAMA,
    "qwen3vl": replace(LLAMA, sections="interleaved"),
    "qwen2moe": replace(
        LLAMA, experts=Routing(normed=False, part=True, gated=True, listed=True)
    ),
    "qwen3moe": replace(LLAMA, experts=Routing(part=True, listed=True)),
    "qwen3vlmoe": replace(
        LLAMA, sections="interleaved", experts=Routing(part=True, listed=True)
    ),
    "olmoe": replace(LLAMA, experts=Routing(normed=False)),
    "phi2": Traits(activations=TANH),
    "gptneox": Traits(activations=GELU, fused_qkv=True, two_orders=True),
    "starcoder2": Traits(activations=TANH),
    "stablelm": Traits(activations=LLAMA.activations, two_orders=True),
    "nemotron": Traits(activations={"relu2": "squared_relu"}),
    "gpt2": Traits(activations=TANH, no_position=0, fused_qkv=True),
    "bloom": Traits(activations=TANH, fused_qkv=True, alibi=8.0),
    "mpt": Traits(activations=GELU, fused_qkv=True, alibi=8.0),
    "smollm3": replace(LLAMA, no_rope=4),
    "granite": GRANITE,
    "granitemoe": replace(GRANITE, rope_told=False, experts=Routing()),
    "granitehybrid": replace(GRANITE, hybrid=True, experts=Routing()),
    "gpt-oss": Traits(
        activations={"silu": "swiglu_oai"}, norm_eps=RMS_EPS, experts=Routing(scores=""),
        windows=2, window=None,
    ),
    "olmo2": replace(LLAMA, windows=4, unscaled=True),
    "exaone": LLAMA,
    "exaone4": replace(LLAMA, windows=4, windows_rotate=True),
    "internlm2": LLAMA,
    "arcee": replace(LLAMA, activations={"relu2": "squared_relu"}),
    "ernie4_5": LLAMA,
    "ernie4_5-moe": replace(LLAMA, experts=Routing(counted=True)),
    "glm4": LLAMA,
    "seed_oss": LLAMA,
    "hunyuan-dense": LLAMA,
    "phi3": replace(LLAMA, fused_qkv=True),
    "command-r": replace(
        LLAMA, norm_eps=("attention.layer_norm_epsilon", None), scales=("logit_scale",)
    ),
    "cohere2": replace(
        LLAMA, norm_eps=("attention.layer_norm_epsilon", None), scales=("logit_scale",),
        windows=4, window=None, windows_rotate=True,
    ),
    "mamba": replace(LLAMA, ssm=True),
    "mamba2": replace(LLAMA, ssm=True),
    "lfm2": replace(LLAMA, shortconv=True),
    "lfm2moe": replace(
        LLAMA, shortconv=True, experts=Routing(scores="sigmoid", counted=True)
    ),
    "qwen3next": replace(DELTA, experts=Routing(part=True, gated=True, listed=True)),
    "qwen35": DELTA,
    "qwen35moe": replace(DELTA, experts=Routing(part=True, gated=True)),
    "deepseek2": replace(
        LLAMA, latent=True, mtp=True,
        experts=Routing(normed=False, lone="softmax", counted=True),  # DeepSeek-V2's
    ),
    "minicpm": MINICPM,
    "minicpm3": replace(MINICPM, latent=True, halves=True, latent_eps=1e-6),
    "glm4moe": replace(
        LLAMA, mtp=True, experts=Routing(scores="sigmoid", normed=False, counted=True)
    ),
    "dots1": replace(
        LLAMA, experts=Routing(scores="sigmoid", normed=False, counted=True)
    ),
    "minimax-m2": replace(LLAMA, experts=Routing(scores="sigmoid")),
    "hunyuan-moe": replace(LLAMA, experts=Routing()),
}  # fmt: skip
