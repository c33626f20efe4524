"""What the engine raises on bad input: one family, each with a message of one plain line."""


class EngineError(ValueError):
    """Whatever is wrong with a file, a prompt, a parameter, or with what an engine is asked for.
    Every kind of it derives from this one."""


class BusyError(EngineError, RuntimeError):
    """An engine is asked for something while it does something else."""


class ClosedError(EngineError, RuntimeError):
    """An engine was closed, with an answer under way or before it was asked for one."""


class PackageError(EngineError, ImportError):
    """A package that is not installed would do what was asked for."""


class SamplingError(EngineError):
    """A parameter that is out of range, or logits from which nothing can be sampled."""


class ModelError(EngineError):
    """A model that this engine cannot run: one line that says what and where."""
