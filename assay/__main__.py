"""The program `assay`, also as `python -m assay`."""

import gc
import sys

from assay.rooms import claim

# Objects made between two searches for garbage. Imports make 200,000, all of which stay; searching
# among them every 700, as Python does, took a tenth of a second of each start.
GARBAGE = 100_000


def main() -> None:
    """Run the program on the rooms beside this package."""
    gc.set_threshold(GARBAGE)
    claim("bench", "conformance", "data")
    from engine.shell import main as program

    program()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder, where no module of a program is to be looked for
    main()
