"""Exceptions of shares on threads of a team, caught on their way to `sys.unraisablehook`.

A compiled share has no caller to raise to: Numba's wrapper passes the exception to that hook and
returns. So our hook precedes the previous one, and stores what such wrappers report on a listening
thread: while it listens, it runs shares and nothing else.
"""

import sys
from collections.abc import Callable
from threading import local


class _Own(local):
    """A thread's own list, while it listens."""

    found: list[BaseException] | None = None


_own = _Own()


class _Hook:
    def __init__(self, before: Callable[["sys.UnraisableHookArgs"], object]) -> None:
        self.before = before

    def __call__(self, unraisable: "sys.UnraisableHookArgs") -> None:
        found, error = _own.found, unraisable.exc_value
        # all others name the failed object; Numba's wrapper passes a word about itself
        if found is not None and error is not None and isinstance(unraisable.object, str):
            found.append(error)
        else:
            self.before(unraisable)


def listen(found: list[BaseException]) -> None:
    """Append exceptions of shares on this thread to `found`, from now on."""
    if not isinstance(sys.unraisablehook, _Hook):  # others may have installed theirs meanwhile
        sys.unraisablehook = _Hook(sys.unraisablehook)
    _own.found = found


def stop_listening() -> None:
    """This thread runs no shares any more."""
    _own.found = None
