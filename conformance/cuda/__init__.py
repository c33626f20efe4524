"""CUDA kernels without a GPU: compiled for one, and run as C++ on the CPU."""
