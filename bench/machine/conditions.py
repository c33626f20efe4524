"""The conditions of a run: code, machine, tools, and other load."""

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.packages import versions
from kernels.cpu.runtime.cores import allowed_cores
from kernels.provenance import machine

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "assay", "numpy", "numba", "llvmlite", "pytest-benchmark", "llama-cpp-python", "torch",
    "transformers", "cupy-cuda12x", "cupy-cuda13x", "triton",
)  # fmt: skip
IDLE_LOAD = 0.5  # mean runnable processes per core, before a run, above which the machine is busy
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


@dataclass(frozen=True, slots=True)
class Conditions:
    """`load` is the mean number of runnable processes over the last minute, before the run began,
    or the number running now if that is lower; `steal` is the share of time that the host took from
    this machine since it started."""

    commit: str  # "" outside a checkout
    dirty: bool
    device: str
    machine: str
    cores: int
    affinity: tuple[int, ...]
    governor: str
    load: float
    steal: float
    memory: int
    system: str
    versions: dict[str, str]

    @property
    def busy(self) -> str:
        """Why its figures are doubtful, or ""."""
        if self.load > IDLE_LOAD * len(self.affinity):
            return f"a busy machine: load {self.load:.1f} on {len(self.affinity)} cores"
        return ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Conditions":
        return cls(**{**data, "affinity": tuple(data["affinity"])})


def conditions() -> Conditions:
    """The conditions here and now."""
    return Conditions(
        commit=git("rev-parse", "HEAD"),
        dirty=bool(git("status", "--porcelain", "--untracked-files=no")),
        device=cpu_name(),
        machine=machine(),
        cores=_physical_cores(),
        affinity=tuple(allowed_cores()),
        governor=GOVERNOR.read_text().strip() if GOVERNOR.exists() else "unknown",
        load=_load(),
        steal=_steal(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        versions=versions(PACKAGES),
    )


def _physical_cores() -> int:
    """Hyper-threads are counted where the system does not tell them apart."""
    try:
        import psutil  # a bare machine whose GPU is checked may have none
    except ImportError:
        return os.cpu_count() or 1
    return int(psutil.cpu_count(logical=False) or os.cpu_count() or 1)


def _load() -> float:
    """Processes that ran in the last minute and ended, such as an earlier run, do not count."""
    mean = os.getloadavg()[0]
    try:
        running, _ = Path("/proc/loadavg").read_text().split()[3].split("/")
    except OSError:
        return mean
    return min(mean, int(running) - 1.0)  # except this process


def _steal() -> float:
    """The share of time that the host took from this machine; 0 where unknown."""
    try:
        _, *times = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return 0.0
    return int(times[7]) / max(1, sum(map(int, times[:8])))


def git(*words: str, folder: Path = ROOT) -> str:
    """git's output for a checkout; "" where there is no git or no checkout. An installed package
    may lie within a checkout of something else."""
    if not (folder / ".git").exists():
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def cpu_name() -> str:
    """The machine's name of its CPU."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith(("model name", "Model name")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
