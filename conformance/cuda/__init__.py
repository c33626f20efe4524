"""CUDA kernels without a GPU: compiled by NVRTC, and run as C++ on the CPU."""
