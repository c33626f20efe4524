"""Which packages are installed, found without importing them: where one is missing much else may
be."""

import importlib.util
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def lacking(names: Iterable[str]) -> list[str]:
    """Those of these import names that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of those of these distributions that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
