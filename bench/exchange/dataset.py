"""A folder in flashinfer-bench's layout, read and written by that package's own classes:
definitions/ and solutions/ with a JSON file for each, workloads/ and traces/ with a line for
each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from flashinfer_bench.data import Definition, Solution, Trace, Workload, append_jsonl_file
from pydantic import BaseModel, ValidationError

Kind = TypeVar("Kind", bound=BaseModel)


class ExchangeError(ValueError):
    """Invalid JSON; the message tells where."""


@dataclass(frozen=True)
class Dataset:
    """The contents of `root`; ExchangeError, with the file, for what cannot be read."""

    root: Path

    def __post_init__(self) -> None:
        if not (self.root / "definitions").is_dir():
            raise ExchangeError(f"{self.root} has no folder definitions")

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        found = [parsed(Definition, path) for path in self._files("definitions", "json")]
        return {definition.name: definition for definition in found}

    @cached_property
    def solutions(self) -> list[Solution]:
        found = [parsed(Solution, path) for path in self._files("solutions", "json")]
        names = [solution.name for solution in found]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ExchangeError(f"{self.root}: two solutions are called {twice[0]}")
        for solution in found:
            if solution.definition not in self.definitions:
                raise ExchangeError(
                    f"solution {solution.name}: there is no definition {solution.definition}"
                )
        return found

    def workloads(self, definition: str) -> list[Workload]:
        """A definition's workloads, in the file's order."""
        return [t.workload for t in self._lines("workloads") if t.definition == definition]

    def traces(self) -> list[Trace]:
        """Stored evaluations."""
        return [*self._lines("traces")]

    def add(self, traces: Sequence[Trace]) -> list[Path]:
        """Append traces, in a file for each definition; returns the files."""
        paths = []
        for trace in traces:
            definition = self.definitions[trace.definition]
            paths.append(self.root / "traces" / definition.op_type / f"{definition.name}.jsonl")
            append_jsonl_file([trace], paths[-1])
        return list(dict.fromkeys(paths))

    def _files(self, folder: str, ending: str) -> list[Path]:
        return sorted((self.root / folder).rglob(f"*.{ending}"))

    def _lines(self, folder: str) -> Iterator[Trace]:
        for path in self._files(folder, "jsonl"):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if line.strip():
                    yield _valid(Trace, line, f"{path}:{number}")


def parsed(kind: type[Kind], path: Path) -> Kind:
    """Parse an object from its JSON file."""
    return _valid(kind, path.read_text(encoding="utf-8"), str(path))


def _valid(kind: type[Kind], text: str, where: str) -> Kind:
    try:
        found: Kind = kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ExchangeError(": ".join(filter(None, (where, place, first["msg"])))) from None
    return found
