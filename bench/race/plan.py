"""The extent of a benchmark run, from pytest's options."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from bench.contenders.contender import CONTENDERS, EngineTest, Setup
from bench.contenders.racer import named
from bench.figures import FULL, QUICK, Card
from bench.ops.cases import TOKENS, BenchCase, cases
from bench.race.experiment import ONCE, Rule
from bench.race.results import results_folder
from bench.shell.display import names
from data import shapes
from engine.embedded import resolve
from engine.gguf.file import GGUFFile
from engine.metadata.config import config_of
from kernels.cpu.runtime.cores import physical_cores
from kernels.cpu.runtime.team import MOST_THREADS
from kernels.kernel import Kernel

# Ops of the embedded model's step.
STEP_OPS = (
    "embedding",
    "rms_norm",
    "linear",
    "rope_norm",
    "kv_write",
    "attention",
    "swiglu",
    "add",
)
STEP_FORMATS = (None, "F16")
QUICK_FORMATS = (None, "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K")  # each represents its kind
BATCHES = (1, 4)
QUICK_MODELS = ("story", "tinyllama-1.1b")
ENGINE_MODELS = ("story-f16", "story-q8_0")


@cache
def context_of(model: Path) -> int:
    """Tokens of context that a model's benchmarks use, at most 4096."""
    with GGUFFile(model) as file:
        return min(config_of(file.metadata, 0).context, 4096)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which models' shapes, at how many tokens, on how many threads, and for how long.

    `models` None means all of the file; `most_seconds` limits one call of a kernel.
    """

    measuring: bool
    quick: bool
    shapes: shapes.Shapes
    models: tuple[str, ...] | None
    threads: int
    most_seconds: float
    engine_models: tuple[Path, ...]
    peers: tuple[str, ...]
    folder: Path

    @classmethod
    def of(cls, config: pytest.Config) -> "Plan":
        """The plan of these options. UsageError, one line, where they name something unknown."""
        option = config.getoption
        quick = option("--quick")
        embedded = ENGINE_MODELS[:1] if quick else ENGINE_MODELS
        models, peers = names(option("--models") or ""), option("--peers")
        patience = option("--most-seconds")
        try:
            plan = cls(
                measuring=option("--benchmark"),
                quick=quick,
                shapes=shapes.read(Path(option("--shapes") or shapes.FILE)),
                models=models or (QUICK_MODELS if quick and not option("--shapes") else None),
                threads=option("--threads") or physical_cores(),
                most_seconds=(0.01 if quick else 0.1) if patience is None else patience,
                engine_models=tuple(map(resolve, option("--engine-model") or embedded)),
                peers=() if peers == "none" else names(peers or ",".join(CONTENDERS)),
                folder=Path(option("--results") or results_folder()),
            )
            plan.demand_possible()
        except OSError as error:
            told = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
            raise pytest.UsageError(told) from None
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        return plan

    def demand_possible(self) -> None:
        """Raise ValueError or OSError for what would otherwise be found out midway."""
        if not 1 <= self.threads <= MOST_THREADS:
            raise ValueError(f"--threads is 0 to {MOST_THREADS}, got {self.threads}")
        if not self.most_seconds > 0:
            raise ValueError(f"--most-seconds is above 0, got {self.most_seconds:g}")
        for peer in self.peers:
            named(peer)
        self.cases()
        for model in self.engine_models:
            context_of(model)
        if self.measuring:
            self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def rule(self) -> Rule:
        """The rule for ops."""
        return Rule(cap_seconds=0.03 if self.quick else 0.15, most=200)

    @property
    def engine_rule(self) -> Rule:
        return Rule(cap_seconds=0.5 if self.quick else 2.0, most=50)

    @property
    def figure_rule(self) -> Rule:
        """The rule for tests that are judged by a goal."""
        return self.engine_rule if self.quick else Rule(least=7, cap_seconds=20.0, most=40)

    @property
    def setup_rule(self) -> Rule:
        """The rule for what takes seconds and happens once."""
        return ONCE if self.quick else Rule(least=5, most=5)

    @property
    def tokens(self) -> tuple[int, ...]:
        return TOKENS[:2] if self.quick else TOKENS

    def cases(self) -> list[BenchCase]:
        """Every kernel that runs here, at every requested size; if quick, in some formats."""
        sweeps = () if self.quick else self.shapes.sweeps
        found = cases(shapes.Shapes(self.shapes.models, sweeps), self.models, self.tokens)
        here = [case for case in found if not case.kernel.missing()]
        return [case for case in here if not self.quick or case.kernel.format in QUICK_FORMATS]

    def kernels(self) -> list[Kernel]:
        """Kernels whose set-up is timed; if quick, those of an embedded model's step."""
        kernels = list({case.kernel.name: case.kernel for case in self.cases()}.values())
        return [
            k for k in kernels if not self.quick or (k.op in STEP_OPS and k.format in STEP_FORMATS)
        ]

    def packings(self) -> list[tuple[Kernel, int, int]]:
        """Kernels that pack weights of a format, with each model's widest (hidden, out)."""
        names = self.models or tuple(self.shapes.models)
        sizes = sorted({(m.hidden, m.ffn) for m in (self.shapes.models[n] for n in names)})
        kernels = {case.kernel.name: case.kernel for case in self.cases() if case.kernel.pack}
        return [(k, *size) for k in kernels.values() if k.format for size in sizes]

    @property
    def engine_setups(self) -> list[tuple[Path, Setup]]:
        """Every model at each number of threads, ours being the first."""
        counts = [self.threads] if self.quick or self.threads == 1 else [self.threads, 1]
        return [
            (model, Setup(count, context=context_of(model), sequences=BATCHES[-1]))
            for model in self.engine_models
            for count in counts
        ]

    def engine_tests(self, setup: Setup) -> list[EngineTest]:
        """Tests over prompts, depths and batches, as far as the context goes; on other numbers of
        threads one prompt and one generation."""
        pp, tg = (64, 16) if self.quick else (512, 32)
        pp, tg = min(pp, setup.context // 2), min(tg, setup.context // 4)
        deep = setup.context - pp
        if setup.threads != self.threads:
            return [EngineTest("pp", prompt=pp // 4), EngineTest("tg", generate=tg)]
        tests = [
            EngineTest("load"),
            EngineTest("first_token", prompt=pp // 4),
            EngineTest("pp", prompt=pp // 4),
            EngineTest("pp", prompt=pp),
            EngineTest("pp", prompt=pp, depth=deep // 2),
            EngineTest("tg", generate=tg),
            EngineTest("tg", generate=tg, depth=deep // 2),
            EngineTest("tg", generate=tg, depth=deep),
        ]
        return tests + [
            EngineTest("batched", prompt=pp // 4, generate=tg // 4, parallel=n) for n in BATCHES
        ]

    @property
    def card(self) -> Card:
        """Small where nothing is measured."""
        return FULL if self.measuring and not self.quick else QUICK
