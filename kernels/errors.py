"""The error of a kernel that does what no kernel may."""


class KernelError(RuntimeError):
    """A kernel crashed while it ran, or wrote out of bounds; the message names what and where."""
