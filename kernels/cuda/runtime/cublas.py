"""cuBLAS, through CuPy's binding."""

from typing import Any

import numpy as np

from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.product import Factors


class Cublas:
    """A cuBLAS handle of our own on the current GPU, whose stream and mode nobody else changes:
    equal products then have equal bits, as the library promises for one stream. DeviceError where
    it is not installed or has no memory."""

    def __init__(self) -> None:
        try:
            from cupy_backends.cuda.libs import cublas
        except (ImportError, RuntimeError) as error:
            raise DeviceError(f"no cuBLAS: {str(error).splitlines()[0]}") from None
        from cupy.cuda import runtime

        self._cublas, self._runtime = cublas, runtime
        try:
            self._handle = cublas.create()
            cublas.setPointerMode(self._handle, cublas.CUBLAS_POINTER_MODE_HOST)
            version = cublas.getVersion(self._handle)
        except cublas.CUBLASError as error:
            raise DeviceError(f"no cuBLAS: {error}") from None
        self.version = f"{version // 10000}.{version // 100 % 100}.{version % 100}"

    def multiply(self, factors: Factors) -> None:
        """Multiply on CuPy's current stream, which must not be capturing: CuPy's binding refuses
        that. Alpha and beta are read at once. The workspace is cuBLAS's own."""
        f, cublas, runtime = factors, self._cublas, self._runtime
        ours: Any = np.array([1, 0], np.float32)  # alpha and beta
        bfloat, single = runtime.CUDA_R_16BF, runtime.CUDA_R_32F
        # By columns, as cuBLAS reads, our rows are columns: out is [rows, tokens] there, W^T x.
        try:
            cublas.gemmEx(
                self._handle, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, f.rows, f.tokens, f.hidden,
                ours[:1].ctypes.data, f.weight, bfloat, f.hidden, f.x, bfloat, f.hidden,
                ours[1:].ctypes.data, f.out, single, f.rows,
                cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT,
            )  # fmt: skip
        except cublas.CUBLASError as error:
            raise DeviceError(
                f"cuBLAS {self.version} does not multiply {f.tokens} tokens of {f.hidden} by"
                f" {f.rows} rows: {error}"
            ) from None
