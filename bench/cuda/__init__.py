"""A GPU judged and measured: the parts of bench/gpu_check.py."""
