"""CUDA kernels without a GPU: compiled by nvcc or NVRTC, and run as C++ on the CPU."""
