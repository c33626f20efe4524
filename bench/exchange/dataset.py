"""A folder as flashinfer-bench lays it out: definitions/ and solutions/ with a JSON file for each,
workloads/ and traces/ with a line for each."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.exchange.schema import Definition, ExchangeError, Solution, Trace, Workload


@dataclass(frozen=True)
class Dataset:
    """What lies under `root`; ExchangeError, with the file, for what cannot be read."""

    root: Path

    def __post_init__(self) -> None:
        if not (self.root / "definitions").is_dir():
            raise ExchangeError(f"{self.root} has no folder definitions")

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        found = [Definition.of(said, str(path)) for path, said in self._files("definitions")]
        return {definition.name: definition for definition in found}

    @cached_property
    def solutions(self) -> list[Solution]:
        found = [Solution.of(said, str(path)) for path, said in self._files("solutions")]
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
        """Those of a definition, in the order of their file."""
        found = (Trace.of(said, where) for where, said in self._lines("workloads"))
        return [trace.workload for trace in found if trace.definition == definition]

    def traces(self) -> list[Trace]:
        """What was evaluated."""
        return [Trace.of(said, where) for where, said in self._lines("traces")]

    def add(self, traces: Sequence[Trace]) -> list[Path]:
        """Append traces, a file for each definition; the files."""
        paths = []
        for trace in traces:
            definition = self.definitions[trace.definition]
            path = self.root / "traces" / definition.op_type / f"{definition.name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(trace.json()) + "\n")
            paths.append(path)
        return list(dict.fromkeys(paths))

    def _files(self, folder: str) -> Iterator[tuple[Path, Any]]:
        for path in sorted((self.root / folder).rglob("*.json")):
            yield path, parsed(path.read_text(encoding="utf-8"), str(path))

    def _lines(self, folder: str) -> Iterator[tuple[str, Any]]:
        for path in sorted((self.root / folder).rglob("*.jsonl")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if line.strip():
                    where = f"{path}:{number}"
                    yield where, parsed(line, where)


def parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ExchangeError(f"{where}: {error}") from None
