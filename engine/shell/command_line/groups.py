"""How commands say what their options are: one line for each, alone or in groups.

    def paint(wall: str, *, look: Look, dry: bool = option(False, "Wait until it is dry.")): ...

An option is a parameter of the command whose default is an `option`, or a field of a dataclass that
the command takes.
"""

import inspect
from collections.abc import Callable
from dataclasses import Field, field, fields, is_dataclass, replace
from functools import cache, wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import typer

ALSO: dict[str, str] = {}  # names that are understood and not listed, each with its listed one
FIELDS: dict[str, str] = {}  # the options of groups, by the engine's names for them
METAVARS = {str: "TEXT", int: "N", float: "X", Path: "FILE"}


class Only:
    """The fields of a group that a command has as options; the others keep their defaults."""

    def __init__(self, *names: str) -> None:
        self.names = names


class Without:
    """The fields of a group that a command does not have as options: it has all others."""

    def __init__(self, *names: str) -> None:
        self.names = names


def option(
    default: Any,
    about: str,
    *names: str,
    also: str = "",
    metavar: str | None = None,
    reads: Callable[..., Any] | None = None,
) -> Any:
    """An option: its default, its help, and its names on the command line. Without a long name
    among these, the parameter's or field's is added. `also` are further names for it, separated by
    spaces, which are understood and not listed; `reads` converts the given `value`."""
    shown = default not in ("", None) and not isinstance(default, bool)
    more = {"help": about, "metavar": metavar, "show_default": shown, "callback": reads}
    return field(default=default, metadata={"names": names, "more": more, "also": also.split()})


def of(group: type, name: str) -> Any:
    """A field's option as typer describes it, for commands that take it alone."""
    return _typed(group)[name].__metadata__[0]


def long_name(names: Any) -> str:
    """The preferred name of an option, for messages."""
    first = next((name for name in names if name.startswith("--")), names[0])
    return str(first).partition("/")[0]


def names_of(group: type) -> dict[str, list[str]]:
    """All names of each field's option, the preferred one first."""
    called = {f: _names(f.name, f) for f in fields(group)}
    return {f.name: [long_name(names), *names, *f.metadata["also"]] for f, names in called.items()}


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer takes it: options in place of a parameter that is a group.

    The user's values become the group again. Defaults are those of the parameter's default, or else
    those of the dataclass; Annotated[Group, Only(...)] leaves out other fields.
    """
    signature = inspect.signature(command)
    groups: dict[str, tuple[Any, list[str]]] = {}
    options: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        group, names = _group(parameter.annotation)
        usual = parameter.default
        if group is not None:
            usual = group() if usual is parameter.empty else usual
            groups[parameter.name] = usual, names
            for name in names:
                kind, default = _typed(group)[name], getattr(usual, name)
                options.append(
                    inspect.Parameter(name, parameter.kind, default=default, annotation=kind)
                )
        elif isinstance(usual, Field):
            described = _described(parameter.name, parameter.annotation, usual)
            kind = Annotated[parameter.annotation, described]
            options.append(parameter.replace(annotation=kind, default=usual.default))
        else:
            options.append(parameter)

    @wraps(command)
    def called(**given: Any) -> None:
        for name, (usual, names) in groups.items():
            given[name] = replace(usual, **{option: given.pop(option) for option in names})
        command(**given)

    vars(called)["__signature__"] = signature.replace(parameters=options)
    return called


@cache
def _typed(group: type) -> dict[str, Any]:
    """The type of each field with typer's description of its option; --help has a section named
    after the group."""
    FIELDS.update({f.name: long_name(_names(f.name, f)) for f in fields(group)})
    section = group.__name__
    return {
        f.name: Annotated[f.type, _described(f.name, f.type, f, rich_help_panel=section)]
        for f in fields(group)
    }


def _described(name: str, kind: Any, field: Any, **more: Any) -> Any:
    names = _names(name, field)
    ALSO.update(dict.fromkeys(field.metadata["also"], long_name(names)))
    told = {**field.metadata["more"], **more}
    if told["metavar"] is None:
        told["metavar"] = METAVARS.get(_plain(kind))
    return typer.Option(*names, **told)


def _names(name: str, field: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = field.metadata["names"]
    if any(given.startswith("--") for given in names):
        return names
    long = name.replace("_", "-")
    return *names, f"--{long}/--no-{long}" if field.default is True else f"--{long}"


def _plain(kind: Any) -> Any:
    """The type of one value of an option: `int` of int | None, `str` of list[str] | None."""
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
    return get_args(kind)[0] if get_origin(kind) is list else kind


def _group(annotation: Any) -> tuple[Any, list[str]]:
    """The dataclass that an annotation names, if any, and the fields that are options."""
    group, *more = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if not (isinstance(group, type) and is_dataclass(group)):
        return None, []
    names = [*_typed(group)]
    for choice in more:
        if unknown := set(choice.names) - set(names):
            raise TypeError(f"{group.__name__} has no {', '.join(sorted(unknown))}")
        only = isinstance(choice, Only)
        names = [name for name in names if (name in choice.names) == only]
    return group, names
