"""The parent's side of a contender: requests samples, one at a time, and waits."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from bench.child import Child, ChildError, output
from bench.contenders.contender import CONTENDERS, FAST, OURS, EngineTest, Setup, present
from bench.race.experiment import Sample
from engine.closeable import Closeable

NANOSECONDS = 1e9


class Racer(Closeable):
    """One contender with one model in its own process; between samples it uses no CPU. `about`
    lists versions and how it runs."""

    def __init__(self, name: str, model: Path, setup: Setup) -> None:
        if reason := present(name):
            raise ChildError(reason)
        self.name, self.model, self.setup = name, model, setup
        environment = CONTENDERS[name].environment
        home = "bench.contenders.session:Session"
        self._child = Child(home, name, model, setup, env=environment)
        self._sampled: Counter[EngineTest] = Counter()
        try:
            self.about = self._child.ask("opened")
        except BaseException:
            self._child.close()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def settings(self) -> str:
        """Settings that distinguish its measurements from those of another setup."""
        return ",".join(filter(None, (self.setup.settings, self.about.get("sparse"))))

    def does(self, test: EngineTest) -> bool:  # noqa: ARG002 - as a program is asked
        """Whatever the setup has room for."""
        return True

    def sample(self, test: EngineTest, number: int = 0) -> Sample:
        """Time the test once, on the random tokens of that number: the same for all racers. 0: the
        number of samples of this test so far, so that every sample has fresh tokens."""
        self._sampled[test] += 1
        number = number or self._sampled[test]
        found: Sample = self._child.ask("sample", test=test, number=number)
        return found

    def fill(self, depth: int) -> int:
        """How many tokens of a test's `depth` its cache holds now: where it can, it has repeated
        the first ones, so that the first sample reads only the rest."""
        return int(self._child.ask("filled", depth=depth))

    def close(self) -> None:
        self._child.close()


class Program:
    """A peer that is a program with llama-bench's options and JSON, such as another build of
    llama.cpp or a fork (ik_llama.cpp), with one model: it times itself.

    Each sample starts it anew: it loads the model and does an uncounted warm-up run, as llama-bench
    does. `name` is its name in tables; `about` has its path and commit. Prompts and steps from an
    empty cache are all that every such program supports.
    """

    settings = ""

    def __init__(self, name: str, path: str, model: Path, setup: Setup) -> None:
        self.name, self.model, self._path, self._setup = name, model, path, setup
        self.about = {"program": path}
        self.sample(EngineTest("tg", generate=1))  # what cannot run is found before any timing

    def does(self, test: EngineTest) -> bool:
        return test.kind in ("pp", "tg") and not test.depth

    def sample(self, test: EngineTest) -> Sample:
        """The time that the program reports for one run, on its own random tokens."""
        setup = self._setup
        options: dict[str, object] = {
            "-m": self.model,
            "-p": test.prompt,
            "-n": test.generate,
            "-t": setup.threads,
            "-b": setup.batch,
            "-ub": setup.batch,
            "-ctk": setup.kv_format.lower(),
            "-ctv": setup.kv_format.lower(),
            "-ngl": 0,
            "-r": 1,
            "-o": "json",
        }
        row = self._row(output(self._path, options)[0], test)
        self.about["build"] = str(row.get("build_commit", "unknown"))
        return Sample(row["samples_ns"][0] / NANOSECONDS)

    def _row(self, text: str, test: EngineTest) -> dict[str, Any]:
        """Its result for this test, whatever else it prints."""
        try:
            rows = json.JSONDecoder().raw_decode(text[max(0, text.find("[")) :])[0]
            sizes = (test.prompt, test.generate)
            (row,) = (r for r in rows if (r["n_prompt"], r["n_gen"]) == sizes)
            if row["samples_ns"][0] > 0:
                return dict(row)
        except (ValueError, TypeError, LookupError):
            pass
        raise ChildError(f"{self._path} does not print llama-bench's JSON")

    def close(self) -> None:
        """Nothing of it runs between samples."""


def named(peer: str) -> tuple[str, str]:
    """A peer's name and its program, "" if none is given. ValueError for an unknown name, or a
    program that cannot be run."""
    name, equals, path = peer.partition("=")
    if not equals and name not in CONTENDERS:
        raise ValueError(
            f"no peer is called {name!r}: {', '.join(CONTENDERS)}, or NAME=PROGRAM for one with"
            " llama-bench's options"
        )
    if equals and (not name or name in CONTENDERS or not os.access(path, os.X_OK)):
        raise ValueError(f"{peer}: want NAME=PROGRAM, a new name and a program that can be run")
    return name, path


def enter(name: str, model: Path, setup: Setup) -> Racer | Program | str:
    """A racer; for NAME=PROGRAM a program that times itself; or one line why this peer cannot take
    part: not installed, no memory budgets, does not load the file, crashed.

    Our own engine is never absent: what it cannot open is an error.
    """
    name, path = named(name)
    if setup.ram_budget and name not in (OURS, FAST):
        return "it keeps to no ram_budget; bench.offload_speed limits its memory"
    try:
        if path:
            return Program(name, path, model, setup)
        return Racer(name, model, setup)
    except ChildError as error:
        if name == OURS:
            raise
        return str(error)
