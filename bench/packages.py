"""Which packages are here, asked without importing them: where one is missing much else may be."""

import importlib.util
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def lacking(names: Iterable[str]) -> list[str]:
    """Those of these packages, by what they are imported as, that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def versions(names: Iterable[str]) -> dict[str, str]:
    """Of those of these packages, by what they are called where they are installed, that are."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
