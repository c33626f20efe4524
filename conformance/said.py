"""What a program says on stderr, beside why it takes so long."""

COMPILING = "assay: compiling and trying kernels"


def complaints(stderr: str) -> str:
    """Without the lines that tell which kernels are being tried."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(COMPILING))
