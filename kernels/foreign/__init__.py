"""Third-party kernels from a file: loaded in a sandboxed child process and judged."""
