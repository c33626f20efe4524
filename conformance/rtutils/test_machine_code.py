"""Machine code on disk: only code that was tried runs, whatever happens to the cache folder."""

import json
import os
import pickle
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import config

import kernels
from conformance.support.child import output_of
from conformance.support.rooms import Copy
from kernels import cache
from kernels.certificates import Certificate, Key, Store, code_of
from kernels.cpu.runtime import streaming
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.object_code import Code, _header, compiled
from kernels.cpu.runtime.share import Share, arguments, pack_words
from kernels.dispatch import Dispatcher, KernelSpec, UncertifiedError
from kernels.kernel import Kernel
from kernels.table import find

RELU, SILU = find("relu/cpu/generic"), find("silu/cpu/generic")
ROUNDING = find("quantise_activations/cpu/generic")
posix = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes are POSIX")
SIGNATURE = "x: f64[n] -> out: f64[n]"


def multiplying(factor: float) -> Callable[..., None]:
    @inner
    def product(value):
        return value * factor

    def kernel(args, thread, n_threads):
        x, out = arguments(args, SIGNATURE)
        for i in range(len(x)):
            out[i] = product(x[i])

    return kernel


def share_of(factor: float) -> Share:
    """A new share each time, without cached state."""
    return Share(lambda: multiplying(factor), SIGNATURE)


def result(share: Share) -> float:
    """The share's output for 1."""
    values = {"x": np.ones(1), "out": np.full(1, np.nan)}
    share(pack_words(SIGNATURE, values))
    return float(values["out"][0])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache folder of the test's own, not yet checked."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(cache.INSTEAD, raising=False)
    monkeypatch.setattr(cache, "_said", set())
    monkeypatch.setattr(cache, "_tried", set())
    return tmp_path / "cache"


def files_in(folder: Path) -> Path:
    (path,) = (folder / "compiled").iterdir()
    return path


def fresh(kernel: Kernel) -> Kernel:
    """The kernel as another process would see it, with nothing loaded."""
    share = kernel.share
    for name in ("code", "_loaded", "_entry", "key", "fingerprint"):
        vars(share).pop(name, None)
    return kernel


def test_compiled_code_is_reloaded(folder):
    first, second, other = share_of(3), share_of(3), share_of(4)
    assert [result(share) for share in (first, second, other)] == [3, 3, 4]
    assert [share.code.kept for share in (first, second, other)] == [False, True, False]
    assert first.code.digest == second.code.digest != other.code.digest
    assert len(list((folder / "compiled").iterdir())) == 2


SETTINGS = [
    ("BOUNDSCHECK", 1), ("DEBUGINFO_DEFAULT", 1), ("DISABLE_INTEL_SVML", True), ("OPT", 1),
    ("LOOP_VECTORIZE", 0), ("SLP_VECTORIZE", 1), ("ENABLE_AVX", False), ("CPU_NAME", "skylake"),
    ("CPU_FEATURES", "+sse2"), ("LLVM_REFPRUNE_PASS", 0), ("EXTEND_VARIABLE_LIFETIMES", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), SETTINGS, ids=[name for name, _ in SETTINGS])
def test_keys_bind_compiler_settings(name, value, monkeypatch):
    share, key = share_of(3).key, Key.of(RELU).digest
    monkeypatch.setattr(config, name, value)
    from kernels.provenance import cpu_features, machine

    cpu_features.cache_clear(), machine.cache_clear()
    try:
        assert share_of(3).key != share
        assert Key.of(RELU).digest != key
    finally:
        monkeypatch.undo()
        cpu_features.cache_clear(), machine.cache_clear()


OPTIMISED = """
from kernels.certificates import Key, code_of
from kernels.table import find
relu = find("relu/cpu/generic")
print(Key.of(relu).digest, relu.share.code.kept, code_of(relu))
"""


def test_each_setting_has_its_own_code(tmp_path):
    """NUMBA_OPT=1, then the default, then either again: each finds its own."""
    copy = Copy(tmp_path)
    plain = copy.environment()
    weak = {**plain, "NUMBA_OPT": "1"}
    said = [output_of(OPTIMISED, cwd=tmp_path, env=e).split() for e in (weak, plain, weak, plain)]
    assert [kept for _, kept, _ in said] == ["False", "False", "True", "True"]
    assert said[0][::2] == said[2][::2]
    assert said[1][::2] == said[3][::2]
    assert said[0][0] != said[1][0]
    assert said[0][2] != said[1][2]


@pytest.mark.parametrize("share", [ROUNDING.share, streaming.fetch], ids=repr)
def test_machine_code_is_independent_of_source_paths(share, folder):
    """Equal sources in two environments compile the same, errors included."""
    homes = [Path(module.__file__).parent.parent for module in (numba, kernels)]
    code = compiled(share.function).object
    assert b".py" in code
    assert not [home for home in homes if str(home).encode() in code]


class MaliciousPickle:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return os.mkdir, (self.path,)


CORRUPTED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "a byte short": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "a bit flipped": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "another construction": lambda data: data.replace(b'"construction": ""', b'"construction": 7'),
    "no object": lambda data: data.partition(b"\n")[0] + b"\n",
    "foreign": lambda _: b"\x7fELF" + bytes(1000),
    "lines": lambda _: b"[]\n{}\nnull\n",
}


@pytest.mark.parametrize("corrupt", CORRUPTED.values(), ids=CORRUPTED.keys())
def test_damaged_code_is_recompiled(corrupt, folder, capfd):
    """A damaged file is replaced, with one line, once."""
    digest = share_of(5).code.digest
    path = files_in(folder)
    whole = path.read_bytes()
    path.write_bytes(corrupt(whole))
    again, third = share_of(5), share_of(5)
    assert (result(again), again.code.kept, again.code.digest) == (5, False, digest)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"assay: compiled/{path.name} in the cache folder is damaged or another")
    assert path.read_bytes() == whole
    assert third.code.kept


def test_pickles_are_not_read(folder, tmp_path):
    share = share_of(5)
    assert result(share) == 5
    planted = tmp_path / "planted"
    files_in(folder).write_bytes(pickle.dumps(MaliciousPickle(planted)))
    assert result(share_of(5)) == 5
    assert not planted.exists()


def test_code_of_another_share_is_not_used(folder):
    """The second share's code under the first one's name is compiled anew."""
    first, second = share_of(6), share_of(7)
    assert [result(first), result(second)] == [6, 7]
    paths = {json.loads(p.read_bytes().partition(b"\n")[0])["key"]: p
             for p in (folder / "compiled").iterdir()}  # fmt: skip
    paths[second.key].replace(paths[first.key])
    again = share_of(6)
    assert (result(again), again.code.kept) == (6, False)


def certified(kernel: Kernel, code: str) -> Certificate:
    return Certificate(
        kernel.name, Key.of(kernel).digest, "quick", 9, 0.5, 0.0, 0.1, "2026-01-01", code=code
    )


def test_untried_code_has_no_certificate(folder):
    """Replaced with a valid header: it is intact, but was not tried."""
    store = Store()
    tried = code_of(fresh(RELU))
    store.add([certified(RELU, tried)])
    assert store.get(RELU) == certified(RELU, tried)
    silu = fresh(SILU).share.code
    swapped = Code(silu.object, "")
    cache.keep(
        f"compiled/{RELU.share.key[:32]}.share",
        _header(RELU.share.name, RELU.share.key, swapped) + swapped.object,
    )
    try:
        assert fresh(RELU).share.code == Code(silu.object, "", kept=True)
        assert store.get(RELU) is None
        with pytest.raises(UncertifiedError, match=r"no certified kernel for relu: .* off by"):
            Dispatcher(store).choose([KernelSpec("relu")])
    finally:
        fresh(RELU)


def test_certificates_without_a_code_digest_are_ignored(folder):
    """Older certificates lack the digest; their failures still count."""
    store = Store()
    store.add([certified(RELU, "")])
    assert store.get(RELU) is None
    failed = Certificate(
        RELU.name, Key.of(RELU).digest, "quick", 0, -1.0, -1.0, 0.0, "2026-01-01", "it hung"
    )
    store.add([failed])
    assert store.get(RELU) == failed


@posix
def test_the_cache_folder_is_private(folder, capfd):
    Store().add([certified(RELU, "code")])
    share_of(3).compile()
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (folder, folder / "compiled")]
    files = [stat.S_IMODE(p.stat().st_mode) for p in (Store().path, files_in(folder))]
    assert (modes, files) == ([0o700] * 2, [0o600] * 2)
    assert not capfd.readouterr().err


@posix
def test_permissions_of_the_cache_folder_are_restricted(folder, capfd):
    share_of(3).compile()
    for path in (folder, folder / "compiled"):
        path.chmod(0o777)
    assert share_of(3).code.kept
    share_of(4).compile()
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE((folder / "compiled").stat().st_mode)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [line.split(": ", 1)[1] for line in capfd.readouterr().err.splitlines()] == [
        f"{path} could be written by other users: it is ours alone now"
        for path in (folder, folder / "compiled")
    ]


@posix
def test_files_that_others_can_write_are_not_used(folder, capfd):
    """Machine code is compiled anew, and the store of certificates starts empty."""
    store = Store()
    store.add([certified(RELU, "code")])
    share_of(3).compile()
    path = files_in(folder)
    for file in (path, store.path):
        file.chmod(0o666)
    assert store.load() == {}
    assert not share_of(3).code.kept
    assert share_of(3).code.kept
    store.add([certified(SILU, "code")])
    assert list(store.load()) == [Key.of(SILU).digest]
    assert capfd.readouterr().err.splitlines() == [
        f"assay: {file} is not used: another user could have written it"
        for file in (store.path, path)
    ]


@posix
def test_another_users_folder_is_not_used(folder, monkeypatch, capfd):
    store = Store()
    store.add([certified(RELU, "code")])
    share_of(3).compile()
    before = sorted(folder.rglob("*"))
    us, foreign = os.getuid(), folder.stat().st_ino
    monkeypatch.setattr(cache, "_foreign", lambda status: status.st_ino == foreign)
    assert store.load() == {}
    share = share_of(3)
    assert (result(share), share.code.kept) == (3, False)
    store.add([certified(SILU, "code")])
    assert list(store.load()) == [Key.of(SILU).digest]
    assert share_of(3).code.kept  # in memory
    assert sorted(folder.rglob("*")) == before
    assert us == os.getuid()
    said = capfd.readouterr().err.splitlines()
    assert said[0] == f"assay: {folder} is not used: it belongs to another user"
    assert said[1].startswith(f"assay: nothing can be kept in {folder}: it is not ours alone")
    assert len(said) == 2


@posix
def test_pipes_in_the_cache_are_ignored(folder):
    share_of(3).compile()
    path = files_in(folder)
    path.unlink()
    os.mkfifo(path)
    assert result(share_of(3)) == 3


IN_MEMORY = """
import os, sys
from kernels.certificates import Store
from kernels.dispatch import Dispatcher, KernelSpec
from kernels.cache import INSTEAD
dispatcher = Dispatcher(Store())
print(dispatcher.choose([KernelSpec("relu")])[KernelSpec("relu")].name)
print(os.environ[INSTEAD].partition(os.pathsep)[0])
"""


def test_without_a_folder_code_stays_in_memory(tmp_path):
    """A line says so before any trial, whose process gets the machine code from memory."""
    copy = Copy(tmp_path)
    (tmp_path / "file").write_text("")
    environment = copy.environment() | {"ASSAY_CACHE": str(tmp_path / "file" / "cache")}
    program = f"import os; os.dup2(1, 2)\n{IN_MEMORY}"
    said = output_of(program, cwd=tmp_path, env=environment).splitlines()
    assert said[0].startswith(f"assay: nothing can be kept in {tmp_path}/file/cache: Not a direct")
    assert said[1] == "relu/cpu/generic"
    assert len(said) == 3
    assert not Path(said[2]).exists()


def test_a_full_disk_is_reported(folder, monkeypatch, capfd):
    write = cache._write

    def full(path: Path, data: bytes) -> None:
        if path.is_relative_to(folder):
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(cache, "_write", full)
    share = share_of(3)
    assert (result(share), share.code.kept, share_of(3).code.kept) == (3, False, True)
    (line,) = capfd.readouterr().err.splitlines()
    assert f"nothing can be kept in {folder}: No space left on device" in line


def test_a_complete_folder_may_be_read_only(folder, monkeypatch, capfd):
    """Nothing has to be written, and nothing is reported."""
    share_of(3).compile()
    monkeypatch.setattr(cache, "_write", None)
    monkeypatch.setattr(cache, "ready", None)
    share = share_of(3)
    assert (result(share), share.code.kept) == (3, True)
    assert not capfd.readouterr().err
