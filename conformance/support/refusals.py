"""Error messages, as single lines."""

from collections.abc import Callable
from typing import Any

import pytest

Kinds = type[Exception] | tuple[type[Exception], ...]


def refusal(kinds: Kinds, of: object, call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """The one-line message with which a call fails, without its prefix that names `of`."""
    with pytest.raises(kinds) as caught:
        call(*given, **named)
    line = str(caught.value)
    assert line.isprintable()
    assert line.startswith(f"{of}: ")
    return line.removeprefix(f"{of}: ")
