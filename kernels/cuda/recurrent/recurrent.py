"""Recurrent ops on a GPU: causal_conv1d, ssm_scan, ssm_scan_heads and gated_delta_net. States are
updated in place."""

from kernels.cuda.runtime.launch import Launch, items
from kernels.shapes import in_place
from reference.op import Shape
from reference.recurrent import causal_conv1d, gated_delta_net
from reference.recurrent.ssm_scan import HEADS, SCAN


def of_channels(shape: Shape) -> int:
    """A state for each channel."""
    return shape["state"] * shape["inner"]


def of_heads(shape: Shape) -> int:
    """A state for each channel of a head."""
    return shape["heads"] * shape["state"] * shape["head_dim"]


OF_A_HEAD = items("heads", "head_dim", threads=64)
convolution = Launch(
    "causal_conv1d.cu",
    "causal_conv1d",
    in_place(causal_conv1d.OP.signature),
    items("width", threads=64),
)
channels = Launch(
    "ssm_scan.cu", "ssm_scan", in_place(SCAN, "state inner"), items("inner", threads=64)
)
heads = Launch("ssm_scan.cu", "ssm_scan_heads", in_place(HEADS, "heads state head_dim"), OF_A_HEAD)
delta = Launch(
    "gated_delta_net.cu",
    "gated_delta_net",
    in_place(gated_delta_net.OP.signature, "heads state head_dim"),
    OF_A_HEAD,
)
