"""What shares raise on threads of a team, caught on its way to `sys.unraisablehook`.

A compiled share has nobody to raise to: Numba's wrapper hands the exception to that hook and
returns. So a hook stands before the one that was there, and keeps what such wrappers report on a
thread that listens: while it does, it runs shares and nothing else.
"""

import sys
from collections.abc import Callable
from threading import get_ident

_listening: dict[int, list[BaseException]] = {}


class _Hook:
    def __init__(self, before: Callable[["sys.UnraisableHookArgs"], object]) -> None:
        self.before = before

    def __call__(self, unraisable: "sys.UnraisableHookArgs") -> None:
        found, error = _listening.get(get_ident()), unraisable.exc_value
        # all others say which object failed, Numba's wrapper tells a word about itself
        if found is not None and error is not None and isinstance(unraisable.object, str):
            found.append(error)
        else:
            self.before(unraisable)


def listen(found: list[BaseException]) -> None:
    """Append what shares raise on this thread to `found`, from now on."""
    if not isinstance(sys.unraisablehook, _Hook):  # others may have put theirs there meanwhile
        sys.unraisablehook = _Hook(sys.unraisablehook)
    _listening[get_ident()] = found


def stop_listening() -> None:
    """This thread runs no shares any more."""
    _listening.pop(get_ident(), None)
