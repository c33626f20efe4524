"""Multi-token prediction (MTP) blocks, each of which predicts one more token (DeepSeek-V3, arXiv
2412.19437, section 2.2; llama.cpp's NextN), for any family:

    h' = block(M [norm(embedding of the next token), norm(h)]),  logits = head(norm(h'))

h is the input of the model's own head after a token, and h' predicts the one after the next. Of
several blocks the k-th takes its predecessor's result for the same token as h, and the k-th token
after that. A block is one of the family's attention blocks, with experts in mixtures; its embedding
and head are the model's unless it has its own, and tensors that a later block lacks besides the
family's are the first one's, such as Qwen's M and norms.
"""

from collections.abc import Container
from dataclasses import replace

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models.family import Part
from engine.models.network import Network
from engine.models.table import FAMILIES, parts_of
from engine.models.tensors import Tensors

HIDDEN = "hidden_cache"  # by cell, the head's input after its token, float32
ITS_OWN = {
    "token_embd.weight": "embed_tokens",
    "output.weight": "shared_head_head",
    "output_norm.weight": "shared_head_norm",
}


def alone(config: ModelConfig) -> ModelConfig:
    """The block as a model of one block, number 0."""
    return replace(config, blocks=1, dense=frozenset(), recurrent=frozenset(), mtp_blocks=0)


def stored(name: str, config: ModelConfig, tensors: Container[str], number: int = 0) -> str:
    """The file's name for a tensor of the `number`-th block as that model."""
    first, block = (f"blk.{config.blocks + i}." for i in (0, number))
    if name in ITS_OWN or name.startswith("nextn."):
        beside = f"nextn.{ITS_OWN[name]}.weight" if name in ITS_OWN else name
        found = [place + beside for place in (block, first) if place + beside in tensors]
        return found[0] if found else name if name in ITS_OWN else block + name
    return block + name.removeprefix("blk.0.") if name.startswith("blk.0.") else name


def joining(config: ModelConfig) -> Tensors:
    """The tensors that combine a token's embedding and h, with dimensions."""
    hidden = config.hidden
    return {
        "nextn.eh_proj.weight": (hidden, 2 * hidden),
        "nextn.enorm.weight": (hidden,),
        "nextn.hnorm.weight": (hidden,),
    }


def expected_tensors(config: ModelConfig) -> Tensors:
    """The tensors of the blocks besides the model's, by the file's names."""
    needed = FAMILIES[config.architecture].expected_tensors(alone(config))
    return {
        stored(n, config, (), i): dims
        for i in range(config.mtp_blocks)
        for n, dims in (needed if i else needed | joining(config)).items()
        if n not in ITS_OWN
    }


def optional_tensors(config: ModelConfig) -> Tensors:
    """Optional tensors of the blocks, by the file's names."""
    found = FAMILIES[config.architecture].optional_tensors(alone(config))
    found = {name: dims for name, dims in found.items() if name.startswith("blk.0.")}
    both = dict.fromkeys(("token_embd.weight", "output.weight"), (config.vocab, config.hidden))
    own = both | {"output_norm.weight": (config.hidden,)}
    found |= {f"nextn.{ITS_OWN[name]}.weight": dims for name, dims in own.items()}
    return {
        stored(name, config, (), i): dims
        for i in range(config.mtp_blocks)
        for name, dims in (found | joining(config) if i else found).items()
    }


def parts(config: ModelConfig) -> dict[str, Part]:
    """Their weights that are parts of tensors, by the file's names."""
    return {
        stored(name, config, (), i): replace(part, tensor=stored(part.tensor, config, (), i))
        for i in range(config.mtp_blocks)
        for name, part in parts_of(alone(config)).items()
    }


def build(net: Network, hidden: Value, next_cells: Value | None) -> Value:
    """The nodes of one step of a block; its logits [outputs, vocab].

    A step's tokens follow those in the cells, the k-th after for the k-th block, whose h is in
    `hidden`, a cache of rows. The last block's h' of each output goes to the row of a cell in
    `next_cells`, where a further step finds it.
    """
    graph, inputs, width = net.graph, net.inputs, net.config.hidden
    own = replace(net, graph=Graph())
    logits = FAMILIES[net.config.architecture].build(own)
    first, *others = own.graph.nodes
    assert first.op == "embedding"
    table = net.weights["token_embd.weight"]
    after = graph("embedding", "next", tokens=inputs.tokens, weight=table)
    behind = graph("embedding", "behind", tokens=inputs.cells, weight=hidden)
    after, behind = (
        net.rms_norm(name, x, net.weights[f"nextn.{name}.weight"])
        for name, x in (("enorm", after), ("hnorm", behind))
    )
    tokens = inputs.tokens.dims[0]
    behind = behind.view(tokens, 1, width)
    both = graph("merge_heads", "both", y=after, x=behind, whole=2 * width)
    both = both.view(tokens, 2 * width)
    graph("linear", first.label, x=both, weight=net.weights["nextn.eh_proj.weight"])
    graph.nodes += others
    last = own.graph.hidden
    if next_cells:
        graph("kv_write", "hidden_write", out=hidden, x=last, cells=next_cells, before=hidden)
    return logits
