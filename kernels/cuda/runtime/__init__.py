"""Compiling and launching kernels, and the devices that they run on."""
