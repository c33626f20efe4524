"""causal_conv1d on a GPU, states updated where they are."""

from kernels.cuda.launch import Launch, items

SIGNATURE = (
    "x: f32[tokens width], weight: f32[taps width], bias: f32[width], sources: i32[tokens],"
    " targets: i32[tokens] -> out: f32[tokens width], states: f32[slots kept width]"
)

generic = Launch("causal_conv1d.cu", "causal_conv1d", SIGNATURE, items("width", threads=64))
