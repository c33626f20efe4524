"""The parent's side of a contender: it asks for samples, one at a time, and waits."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from bench.child import Child, ChildError, output
from bench.contenders.contender import CONTENDERS, FAST, OURS, Setup, present
from bench.engine.engine_tests import EngineTest
from bench.race.experiment import Sample
from engine.closeable import Closeable

NANOSECONDS = 1e9


class Racer(Closeable):
    """One contender with one model in a process of its own; between samples it uses no CPU.

    `about` says which versions run, and how.
    """

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
        """What sets its measurements apart from those of another set-up."""
        return ",".join(filter(None, (self.setup.settings, self.about.get("sparse"))))

    def does(self, test: EngineTest) -> bool:  # noqa: ARG002 - as a program is asked
        """Whatever the set-up has room for."""
        return True

    def sample(self, test: EngineTest, number: int = 0) -> Sample:
        """Time the test once, on the random tokens of that number: racers given the same one have
        the same tokens. 0: how many samples of this test it has been asked for, so that every
        sample has fresh ones."""
        self._sampled[test] += 1
        number = number or self._sampled[test]
        found: Sample = self._child.ask("sampled", test=test, number=number)
        return found

    def fill(self, depth: int) -> int:
        """How many tokens its cache holds now, of `depth` that a test begins behind: where it can
        it has repeated the first ones, so that what is missing alone is read by the first
        sample."""
        return int(self._child.ask("filled", depth=depth))

    def close(self) -> None:
        self._child.close()


class Program:
    """A peer that is a program with llama-bench's options and its JSON, such as another build of
    llama.cpp or what began as a copy of it (ik_llama.cpp), with one model: it times itself.

    Each sample starts it anew: it loads the model and has a run that it does not count, as
    llama-bench does. `name` is what tables call it; `about` says where it is and of which commit it
    was built. Prompts and steps in an empty cache are all that every such program knows.
    """

    settings = ""

    def __init__(self, name: str, path: str, model: Path, setup: Setup) -> None:
        self.name, self.model, self._path, self._setup = name, model, path, setup
        self.about = {"program": path}
        self.sample(EngineTest("tg", generate=1))  # what cannot run is found before any timing

    def does(self, test: EngineTest) -> bool:
        return test.kind in ("pp", "tg") and not test.depth

    def sample(self, test: EngineTest) -> Sample:
        """The time that it tells of one run, of random tokens of its own."""
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
        """What it says of this test, whatever else it prints before and after."""
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
    """A peer's name and its program, which is "" where none is said. ValueError for a name that
    nobody has, and for a program that cannot be run."""
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
    """A racer; a program that times itself, for NAME=PROGRAM; or in one line why this peer cannot
    take part: not installed, keeps to no budget of memory, does not take the file, crashed.

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
