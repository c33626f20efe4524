"""Small changes of CUDA sources, each of which makes a kernel wrong."""
