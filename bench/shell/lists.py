"""Options that take several values separated by commas."""

import typer


def names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def numbers(text: str, option: str, least: int = 0) -> tuple[int, ...]:
    """`1,8,512` as integers."""
    found = []
    for word in names(text):
        if not (word.isascii() and word.isdigit()) or not least <= int(word) < 2**31:
            raise typer.BadParameter(f"{option} wants numbers of at least {least}; got {word!r}")
        found.append(int(word))
    return tuple(found)
