"""What compiles kernels, launches them, and is the device that they run on."""
