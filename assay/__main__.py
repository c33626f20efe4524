"""The program `assay`, also as `python -m assay`."""

import sys

from assay.rooms import claim


def main() -> None:
    """Run the program on the rooms beside this package."""
    claim("bench", "conformance", "data")
    from engine.shell import main as program

    program()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder, where no module of a program is to be looked for
    main()
