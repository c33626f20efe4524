"""The engine's exceptions for bad input; each message is one line."""


class EngineError(ValueError):
    """Base of all errors for bad files, prompts, parameters and requests."""


class BusyError(EngineError, RuntimeError):
    """The engine is already running something else."""


class ClosedError(EngineError, RuntimeError):
    """The engine was closed, before or during a request."""


class PackageError(EngineError, ImportError):
    """A required optional package is not installed."""


class SamplingError(EngineError):
    """A sampling parameter out of range, or logits that cannot be sampled from."""


class ModelError(EngineError):
    """A model that this engine cannot run; one line with the reason and where."""
