"""What a kernel did that no kernel may."""


class KernelError(RuntimeError):
    """A kernel was stopped while it ran, or wrote where it must not; says what and where."""
