"""The program `assay`, also as `python -m assay`."""

import signal
import sys
from importlib.machinery import ExtensionFileLoader
from pkgutil import resolve_name
from types import FrameType

from assay.rooms import claim
from kernels.child import begin, leave

SOON = 0.05  # seconds
IMPORTING = ExtensionFileLoader.create_module.__code__, ExtensionFileLoader.exec_module.__code__


def main() -> None:
    """Run the program on the rooms beside this package."""
    _interrupt_again()
    claim("bench", "conformance", "data")
    begin(_program)


def _program() -> None:
    try:
        resolve_name("engine.shell:main")()
    except SystemExit as end:
        leave(int(end.code or 0))


def _interrupt_again() -> None:
    """Ctrl-C that comes in a destructor or a callback is dropped there by Python, with words on
    stderr; it comes again behind it, without them."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # who started the program wants it to go on
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, _interrupt)
    otherwise = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, SOON)
        else:
            otherwise(unraisable)

    sys.unraisablehook = hook


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but not while an extension module is imported, since those that
    Cython makes drop some exceptions then: it is tried again every SOON until that is over."""
    while frame:
        if frame.f_code in IMPORTING:
            signal.setitimer(signal.ITIMER_REAL, SOON)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder, where no module of a program is to be looked for
    main()
