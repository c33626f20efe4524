"""What tests share: the engine over a model that spells, and the program in this process."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.llama.spelling import Spelling
from engine import Engine
from engine.shell import main


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Spelling(format="Q8_0").write(tmp_path_factory.mktemp("generate") / "small.gguf")


@pytest.fixture(scope="module")
def shared(path: Path) -> Iterator[Engine]:
    with Engine.load(path, threads=2, context=64) as engine:
        yield engine


@pytest.fixture
def engine(shared: Engine) -> Engine:
    shared.reset()
    return shared


@pytest.fixture
def inside(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Exit code, stdout and stderr of the program, in this process, which costs no start."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return (code if isinstance(code, int) else 0, *capfd.readouterr())

    return run
