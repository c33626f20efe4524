"""Which packages are here, asked without importing them: where one is missing much else may be."""

import importlib.util
from collections.abc import Iterable


def lacking(names: Iterable[str]) -> list[str]:
    """Those of these packages, by what they are imported as, that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]
