"""What is refused, and with which words."""

from collections.abc import Callable
from typing import Any

import pytest

Kinds = type[Exception] | tuple[type[Exception], ...]


def refusal(kinds: Kinds, of: object, call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """The one plain line with which a call is refused, without what it is `of` and begins with."""
    with pytest.raises(kinds) as caught:
        call(*given, **named)
    line = str(caught.value)
    assert line.isprintable()
    assert line.startswith(f"{of}: ")
    return line.removeprefix(f"{of}: ")
