"""kv_write on a GPU, into the cache itself."""

from kernels.cuda.launch import Launch, across
from reference.kv_write import FORMATS_OF_CACHE

SIGNATURE = "x: f32[tokens width], cells: i32[tokens] -> out: format[capacity width]"

LAUNCHES = {
    name: Launch("kv_write.cu", "kv_write", SIGNATURE, across("tokens", "width"), name)
    for name in FORMATS_OF_CACHE
}
