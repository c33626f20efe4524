"""The block behind a model's own that foretells one token more (DeepSeek-V3, arXiv 2412.19437,
section 2.2; what llama.cpp calls NextN), whatever the family:

    h' = block(M [norm(embedding of the next token), norm(h)]),  logits = head(norm(h'))

h is what the model's own head reads behind a token, and h' stands for what it will read behind the
next. The block is one of the family's that attends and, in mixtures, has experts; its embedding and
head are the model's unless it has its own. A file may have several such blocks: the first is used.
"""

from collections.abc import Container
from dataclasses import replace

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models.family import Part
from engine.models.network import Network
from engine.models.table import FAMILIES, parts_of
from engine.models.tensors import Tensors

HIDDEN = "hidden_cache"  # by cell, what the model's head reads behind its token, float32
ITS_OWN = {
    "token_embd.weight": "embed_tokens",
    "output.weight": "shared_head_head",
    "output_norm.weight": "shared_head_norm",
}


def alone(config: ModelConfig) -> ModelConfig:
    """The block as a model of one, number 0."""
    return replace(config, blocks=1, leading=0, recurrent=frozenset(), further=0)


def stored(name: str, config: ModelConfig, tensors: Container[str]) -> str:
    """What the file calls a tensor of that model."""
    block = f"blk.{config.blocks}."
    if (own := f"{block}nextn.{ITS_OWN.get(name)}.weight") in tensors:
        return own
    if name.startswith("nextn."):
        return block + name
    return block + name.removeprefix("blk.0.") if name.startswith("blk.0.") else name


def joining(config: ModelConfig) -> Tensors:
    """What joins a token's embedding and h, with dimensions."""
    hidden = config.hidden
    return {
        "nextn.eh_proj.weight": (hidden, 2 * hidden),
        "nextn.enorm.weight": (hidden,),
        "nextn.hnorm.weight": (hidden,),
    }


def expected_tensors(config: ModelConfig) -> Tensors:
    """What the block needs beside the model, by the file's names."""
    one = alone(config)
    needed = FAMILIES[config.architecture].expected_tensors(one) | joining(config)
    return {stored(n, config, ()): dims for n, dims in needed.items() if n not in ITS_OWN}


def optional_tensors(config: ModelConfig) -> Tensors:
    """What a file may have of the block, by its names."""
    one, block = alone(config), f"blk.{config.blocks}."
    found = FAMILIES[config.architecture].optional_tensors(one)
    head = {"output_norm.weight": (config.hidden,)}
    both = dict.fromkeys(("token_embd.weight", "output.weight"), (config.vocab, config.hidden))
    return {
        **{stored(n, config, ()): dims for n, dims in found.items() if n.startswith("blk.0.")},
        **{f"{block}nextn.{ITS_OWN[n]}.weight": dims for n, dims in (both | head).items()},
    }


def parts(config: ModelConfig) -> dict[str, Part]:
    """Its weights that are parts of tensors, all by the file's names."""
    return {
        stored(name, config, ()): replace(part, tensor=stored(part.tensor, config, ()))
        for name, part in parts_of(alone(config)).items()
    }


def build(net: Network, hidden: Value, next_cells: Value) -> Value:
    """The nodes of one step of that model; its logits [outputs, vocab].

    Tokens of a step are those behind what the cells hold, whose h is in `hidden`, a cache of rows;
    h' of each output goes to the row of a cell in `next_cells`, from where a further step has it.
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
    both = graph("heads_joined", "both", y=after, x=behind, whole=2 * width)
    both = both.view(tokens, 2 * width)
    graph("linear", first.label, x=both, weight=net.weights["nextn.eh_proj.weight"])
    graph.nodes += others
    last = own.graph.hidden
    graph("kv_write", "hidden_write", out=hidden, x=last, cells=next_cells, before=hidden)
    return logits
