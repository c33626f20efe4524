"""Certificates become invalid when anything they bind changes, and nothing runs without one."""

import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from conformance.mutants.reach import Parts
from conformance.support.rooms import Copy
from kernels import certificates, provenance
from kernels.certificates import Certificate, Key, Store
from kernels.certify import Trials, certify
from kernels.cpu.runtime.share import Share
from kernels.dispatch import Dispatcher, KernelSpec, UncertifiedError
from kernels.kernel import Kernel
from kernels.runs import differing
from kernels.table import KERNELS, find, find_any, variants
from kernels.trial import Request

SOFTMAX, SILU, ROPE, LINEAR = (
    find(name)
    for name in ("softmax/cpu/generic", "silu/cpu/generic", "rope_norm/cpu/generic",
                 "linear/cpu/generic/Q4_0")
)  # fmt: skip
ON_GPU = find_any("softmax/cuda/generic")
CODE = "what every kernel's machine code is said to be"


def certificate(kernel: Kernel, level: str = "quick", failure: str = "") -> Certificate:
    key = Key.of(kernel).digest
    return Certificate(
        kernel.name, key, level, 24, 0.5, 1e-15, 0.1, "2026-01-01", failure, code=CODE
    )


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "certificates.jsonl")


@pytest.fixture
def stubbed_code(monkeypatch):
    """Machine code digests are stubbed, so that nothing is compiled."""
    monkeypatch.setattr("kernels.certificates.code_of", lambda _: CODE)


EDITS = {  # a file, and the kernels that an edit of it outdates
    "nothing": [],
    "kernels/cpu/rope.py": [ROPE],
    "kernels/cpu/isa/sweep.py": [SOFTMAX, SILU, ROPE],
    "kernels/cpu/formats/packing.py": [LINEAR],
    "kernels/cpu/linear/linear_int8.py": [LINEAR],  # whose loops are linear_blocks.py's
    "kernels/cpu/quantise_activations.py": [LINEAR],
    "kernels/judge.py": [SOFTMAX, SILU, ROPE, LINEAR, ON_GPU],
    "kernels/certificates.py": [SOFTMAX, SILU, ROPE, LINEAR, ON_GPU],  # which asks how it is built
    "kernels/cpu/__init__.py": [SOFTMAX, SILU, ROPE, LINEAR, ON_GPU],  # which runs before them
    "kernels/cuda/runtime/gpu.py": [ON_GPU],
    "reference/softmax.py": [SOFTMAX, ON_GPU],
    "reference/values.py": [SOFTMAX, SILU, ROPE, LINEAR, ON_GPU],
    "reference/formats/blocks32.py": [SOFTMAX, SILU, ROPE, LINEAR, ON_GPU],
}
DIGESTS = """
import json, os, sys
import kernels, reference
from kernels.certificates import Key
from kernels.table import find_any
from reference.stamps import source_stamps
names, files = json.loads(sys.argv[1]), json.loads(sys.argv[2])
for file in files:
    if os.fork() == 0:  # so that nothing is remembered of another edit
        if file != "nothing":
            with open(file, "a") as source:
                source.write("# edited\\n")
        for room in (kernels, reference):  # as if it were imported now
            room.STAMPS.update(source_stamps(room.__file__))
        keys = [Key.of(find_any(name), "emulated").digest for name in names]
        print(json.dumps([file, keys]), flush=True)
        if file != "nothing":
            os.truncate(file, os.path.getsize(file) - len("# edited\\n"))
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """For every edit, made in a copy of the rooms: the kernels whose key it changes."""
    names = [kernel.name for kernel in (SOFTMAX, SILU, ROPE, LINEAR, ON_GPU)]
    copy = Copy(tmp_path_factory.mktemp("rooms"))
    lines = copy.python(DIGESTS, json.dumps(names), json.dumps(list(EDITS))).splitlines()
    digests = dict(map(json.loads, lines))
    return {
        file: [n for n, a, b in zip(names, found, digests["nothing"], strict=True) if a != b]
        for file, found in digests.items()
    }


@pytest.mark.parametrize(("file", "outdated"), EDITS.items(), ids=EDITS)
def test_edits_invalidate_certificates(changed, file, outdated):
    """Editing a kernel, its callees, its reference, its cases or the judge changes the key."""
    assert changed[file] == [kernel.name for kernel in outdated]


def test_keys_bind_all_sources_of_a_kernel(monkeypatch):
    """Keys of all CPU kernels are compared with their sources' names in place of digests."""

    def told(*modules: str, extra: tuple[str, ...] = ()) -> str:
        return " ".join((*modules, *extra, ""))

    for module in (provenance, certificates):
        monkeypatch.setattr(module, "digest_of", told)
    monkeypatch.setattr(provenance, "fingerprint", provenance.fingerprint.__wrapped__)
    monkeypatch.setattr(certificates, "fingerprint", provenance.fingerprint)
    monkeypatch.setattr(certificates, "_digest", lambda *words: " ".join(words))
    monkeypatch.setattr(Share, "fingerprint", property(Share.fingerprint.func))
    for kernel in KERNELS:
        key, parts = Key.of(kernel), (getattr(kernel.spec, f.name) for f in fields(kernel.spec))
        of_op = {getattr(p, "func", p).__module__ for p in parts if callable(p)}
        bound = {*f"{key.source} {key.reference} {key.judge}".split()}
        assert Parts(kernel).modules | of_op <= bound, kernel.name


@pytest.mark.usefixtures("stubbed_code")
def test_certificates_bind_tools_and_machine(store, monkeypatch):
    """It is found again, but not with another version of a tool, nor on another machine."""
    store.add([certificate(SOFTMAX)])
    assert store.get(SOFTMAX) == certificate(SOFTMAX)
    for name, told in (
        ("tools", lambda: {"numba": "0.1"}),
        ("machine", lambda: "x86_64/another/0123456789ab"),
        ("code_of", lambda _: "other machine code"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"kernels.certificates.{name}", told)
            assert store.get(SOFTMAX) is None
    assert store.get(SOFTMAX) is not None


def test_damaged_lines_are_ignored(store):
    """Partial lines, another file's and unknown levels are ignored; the rest counts."""
    good = json.dumps(asdict(certificate(SOFTMAX)))
    unknown = json.dumps(asdict(replace(certificate(SILU), level="perfect")))
    other = ["{", "[]", "null", "12", '{"kernel": 1}', "\x00\xff"]
    lines = [*other, good[:40], unknown, good, good[1:]]
    store.path.write_text("\n".join(lines))
    assert list(store.load().values()) == [certificate(SOFTMAX)]


@pytest.mark.usefixtures("stubbed_code")
def test_a_missing_store_is_empty(store):
    """No file means no certificates; the first one creates its folder."""
    assert store.load() == {}
    nested = Store(store.path.parent / "a" / "b.jsonl")
    nested.add([certificate(SILU)])
    assert nested.get(SILU) == certificate(SILU)


def test_concurrent_writers_write_whole_lines(store):
    """Certificates appended from several threads at once are all there, each complete."""
    others = [replace(certificate(SILU), key=f"{i:064}", failure="x" * 2000) for i in range(400)]

    def write(part: list[Certificate]) -> None:
        for one in part:
            Store(store.path).add([one])

    writers = [threading.Thread(target=write, args=(others[i::4],)) for i in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert store.load() == {one.key: one for one in others}


@pytest.mark.usefixtures("stubbed_code")
def test_deep_outranks_quick(store):
    """A quick pass hides neither a deep pass nor a deep failure, but a quick failure counts; those
    of other machine code do not."""
    quick, deep = certificate(SOFTMAX), certificate(SOFTMAX, "deep")
    failed = certificate(SOFTMAX, "quick", "out[0] is wrong")
    deeply_failed = certificate(SOFTMAX, "deep", "out[0] is wrong")
    for written, wanted in (
        ([quick, deep], deep),
        ([deep, quick], deep),
        ([deep, failed], failed),
        ([deeply_failed, quick], deeply_failed),
        ([replace(deep, code="other"), quick], quick),
        ([replace(deeply_failed, code="other"), quick], quick),
    ):
        store.path.unlink(missing_ok=True)
        store.add(written)
        assert store.get(SOFTMAX) == wanted


NEED = KernelSpec("linear", "Q4_0")


def options() -> Iterator[Kernel]:
    known = variants(NEED.op, NEED.format)
    return (k for k in known if k.numerics == "exact" and not k.missing())


@pytest.mark.usefixtures("stubbed_code")
def test_a_failed_kernel_is_replaced_by_the_next(store):
    """The engine uses the best variant that passed, and the notes say why not a better one."""
    first, second, *_ = options()
    store.add([certificate(first, failure="out[3] is 7"), certificate(second)])
    dispatcher = Dispatcher(store)
    assert dispatcher.choose([NEED]) == {NEED: second}
    assert dispatcher.notes == [f"{first.name} failed its trial and is not used: out[3] is 7"]


@pytest.mark.usefixtures("stubbed_code")
def test_strict_mode_takes_no_other_variant(store):
    """In strict mode a failed certificate is an error that names kernel and reason."""
    first, second, *_ = options()
    store.add([certificate(first, failure="out[3] is 7"), certificate(second)])
    with pytest.raises(UncertifiedError, match=rf"{first.name} .* out\[3\] is 7; strict mode"):
        Dispatcher(store, strict=True).choose([NEED])


@pytest.mark.usefixtures("stubbed_code")
def test_without_a_certified_kernel_nothing_runs(store):
    """When every variant failed, choosing is an error with the last reason."""
    store.add([certificate(kernel, failure="wrong") for kernel in options()])
    with pytest.raises(UncertifiedError, match=r"no certified kernel for linear Q4_0: .* wrong"):
        Dispatcher(store).choose([NEED])


@pytest.mark.usefixtures("stubbed_code")
def test_a_variant_can_be_requested(store):
    """A variant requested by name is used although a better one passed."""
    store.add([certificate(kernel) for kernel in options()])
    assert Dispatcher(store, variant="scalar").choose([NEED])[NEED].variant == "scalar"


def test_missing_certificates_are_made_and_reported(store):
    """Missing certificates are made by child processes, stored, and reported one by one."""
    told: list[Trials] = []
    needs = [KernelSpec("relu"), KernelSpec("add")]
    chosen = Dispatcher(store).choose(needs, told.append)
    names = ["add/cpu/generic", "relu/cpu/generic"]
    assert sorted(t.certificate.kernel for t in told if t.certificate) == names
    assert {t.total for t in told} == {2}
    assert [t.done for t in told] == sorted(t.done for t in told)
    assert (told[-1].done, told[-1].trying) == (2, ())
    assert {name for t in told for name in t.trying} == set(names)
    for kernel in chosen.values():
        kept = store.get(kernel)
        assert kept.passed
        assert kept.cases > 0


SLOW = """
import sys, time
print(sys.argv[1], flush=True)
time.sleep(100)
"""


def test_a_trial_beyond_the_timeout_has_no_certificate(store, tmp_path, monkeypatch):
    """A trial that does not end in time leaves no certificate, not even a failed one."""
    (tmp_path / "slow_trial.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    told = json.dumps({"certificate": asdict(certificate(SOFTMAX))})
    program, began = ("slow_trial", told), time.monotonic()
    certify([Request(SOFTMAX.name), Request(SILU.name)], store, program=program, until=began + 3)
    assert 3 <= time.monotonic() - began < 40
    assert store.load() == {certificate(SOFTMAX).key: certificate(SOFTMAX)}


def test_keys_are_distinct():
    """No two kernels of the table share a key."""
    assert len({Key.of(kernel).digest for kernel in KERNELS}) == len(KERNELS)


BROKEN = """
import json, sys
from kernels.certificates import Store
from kernels.certify import certify
from kernels.table import find
from kernels.trial import Request
kernels, store = [find(name) for name in sys.argv[1:]], Store()
certify([Request(kernel.name) for kernel in kernels], store, patience=10)
print(json.dumps({k.op: store.get(k).failure for k in kernels}))
"""


HANG = "while row[d] != -1.0:\n                    row[d] = x[t, h, d]"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_crashes_and_hangs_are_recorded_as_failures(tmp_path):
    """Kernels with an invalid write, an endless loop or a compile error each get a failed
    certificate, and the next kernel its good one."""
    copy = Copy(tmp_path)
    copy.edit("kernels/cpu/heads.py", "joined[d] = row[d]", "joined[d + (1 << 40)] = row[d]")
    copy.edit("kernels/cpu/heads.py", "row[d] = x[t, h, d]", HANG)
    copy.edit("kernels/cpu/activations.py", "cubic = fma(", "cubic = unheard_of(")
    names = [f"{op}/cpu/generic" for op in ("merge_heads", "split_heads", "gelu", "silu")]
    failures = json.loads(copy.python(BROKEN, *names))
    again = r" \(again: assay op merge_heads --variant generic --shape tokens=\d+,.*\)"
    assert re.fullmatch("took the process down with SIG(SEGV|BUS)" + again, failures["merge_heads"])
    assert failures["split_heads"].startswith("did not finish within 10 s (again: assay op ")
    assert failures["gelu"].startswith("stopped its trial: ")
    assert failures["silu"] == ""


@pytest.mark.parametrize(
    ("other", "differs"),
    [(-np.nan, False), (1.0, True), (np.inf, True)],
    ids=["a NaN of another sign", "a number", "an infinity"],
)
def test_the_sign_of_a_nan_is_unspecified(other, differs):
    """Runs give the same bits, except that the sum of two NaN has the sign of either."""
    one, two = (np.array([0.0, value], np.float32) for value in (np.nan, other))
    assert bool(differing({"out": one}, {"out": two})) == differs
    assert differing({"out": one[:1]}, {"out": -one[:1]}) == "out"
