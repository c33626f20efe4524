"""Block structures shared by families, from embedded tokens to logits: in each block a mixer,
mostly attention, and a feed-forward network, in sequence or in parallel."""

from collections.abc import Callable

from engine.graph import Value
from engine.models.feed_forward import feed_forward
from engine.models.network import Network

Mixed = Callable[[int, Value], Value]  # block i's mixer of h, both [tokens hidden]
Norm = Callable[[str, Value], Value]  # rms_norm or layer_norm of a network


def logits_of_blocks(
    net: Network,
    x: Value,
    mixed: Mixed,
    norm: Norm | None = None,
    after: bool = False,
    last: str = "output_norm",
) -> Value:
    """x [tokens hidden] -> logits [outputs, vocab]; both parts of a block read a norm of the
    residual stream and add to it.

    `norm` is rms_norm unless given. `after` says that both outputs have norms, too, wherever the
    file has them; in other families post_attention_norm is a name for the network's input norm.
    `last` is the norm before the logits.
    """
    normed, residual = norm or net.rms_norm, net.config.scales.residual
    for i in range(net.config.blocks):
        block = f"blk.{i}"
        own = mixed(i, normed(f"{block}.attn_norm", x))
        own = normed(f"{block}.post_attention_norm", own) if after else own
        own = net.scaled(f"{block}.attn_scaled", own, residual)
        x = net.add(f"{block}.attn_residual", x, own)
        other = not after and f"{block}.post_attention_norm.weight" in net.weights
        h = normed(f"{block}.{'post_attention' if other else 'ffn'}_norm", x)
        fed = feed_forward(net, i, h)
        fed = normed(f"{block}.post_ffw_norm", fed) if after else fed
        fed = net.scaled(f"{block}.ffn_scaled", fed, residual)
        x = net.add(f"{block}.ffn_residual", x, fed)
    return net.logits(normed(last, net.wanted(x)))


def parallel_residual(net: Network, i: int, x: Value, attended: Value, h: Value) -> Value:
    """x [tokens hidden] plus block i's attention output and the network of h."""
    both = net.add(f"blk.{i}.both", feed_forward(net, i, h), attended)
    return net.add(f"blk.{i}.residual", x, both)
