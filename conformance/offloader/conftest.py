"""The program in this process, as the tests of dense models have it."""

from conformance.llama.conftest import inside

__all__ = ["inside"]
