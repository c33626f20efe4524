"""The parts of a check, one after the other."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.conditions import conditions
from bench.cuda import cases, engine, sanitizer, step
from bench.cuda.cases import OpCase
from bench.cuda.ceilings import Ceilings, probe
from bench.cuda.check import Check
from bench.cuda.clock import Clock
from bench.cuda.contest import first_line
from bench.cuda.goals import GEMV, GOALS, peers_lines
from bench.cuda.judged import compile_all, judge_all, runnable
from bench.cuda.measure import OURS, failed, measure
from bench.gpu_check import lacking
from bench.results import Measurement, Results
from data.shapes import read
from kernels.certificates import Store

# By when parts that could take longer have to end, as shares of all the time.
JUDGED, SANITIZED, COMPARED = 0.42, 0.5, 0.58
RANDOM = 0.5  # seconds of random cases for each kernel
CELLS, PROMPT = 32768, 2048
STEPS = (("tinyllama-1.1b", "Q4_0"), ("llama-2-7b", "F16"))


def run(check: Check, models: Mapping[str, Path]) -> None:
    """All of them; one that breaks off is a failure, and the next one follows."""
    free, total = check.gpu.memory()
    check.say(f"{check.gpu.identity}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
    comparison = begin_comparison(check)  # most of its time goes into compiling CPU kernels
    parts: dict[str, Callable[[Check], None]] = {
        "judging": judge,
        "compute-sanitizer": sanitize,
        "the engine": partial(end_comparison, comparison=comparison),
        "measuring": partial(measure_all, models=models),
    }
    try:
        for what, part in parts.items():
            check.say(f"{what} ...")
            try:
                part(check)
            except Exception as error:  # a lost device, a full disk: it is said, whatever it is
                check.fail(f"{what} broke off: {type(error).__name__}: {first_line(error)}")
    finally:  # Ctrl-C does not reach it
        if not isinstance(comparison, str):
            sanitizer.stop(comparison)
    check.say(f"{len(check.failures)} failures" if check.failures else "no failure")
    for failure in check.failures:
        check.say(f"  {failure}")


def judge(check: Check) -> None:
    """Every kernel on the GPU."""
    kernels, capability = runnable(check.gpu), check.gpu.capability
    if not check.gpu.library:
        check.say("there is no cuBLAS here: kernels that need it are not tried")
    complaints = compile_all(kernels, capability, os.cpu_count() or 1)
    for complaint in complaints:
        check.fail(complaint)
    check.say(f"{len(kernels)} kernels compiled, {len(complaints)} not")
    store = Store(check.folder / "certificates.jsonl")
    found = judge_all(kernels, store, RANDOM, check.by(JUDGED))
    passed = [certificate for certificate in found if certificate.passed]
    for certificate in found:
        if not certificate.passed:
            check.fail(f"{certificate.kernel}: {certificate.failure}")
    tried = sum(certificate.cases for certificate in found)
    check.say(f"{len(passed)} of {len(kernels)} kernels passed, in {tried:,} cases")
    if passed:
        worst = max(passed, key=lambda certificate: certificate.worst)
        check.say(f"nearest to its bound: {worst.kernel}, at {worst.worst:.2f} of it")
    if unreached := len(kernels) - len(found):
        check.say(f"not reached in time: {unreached} kernels")


def sanitize(check: Check) -> None:
    """A sample under each of the sanitizer's tools."""
    path = sanitizer.program()
    if path is None:
        check.say("not run: there is no compute-sanitizer here")
        return
    for tool in sanitizer.TOOLS:
        left = check.left(SANITIZED)
        if left <= 0:
            check.say(f"{tool}: not reached in time")
            continue
        finding = sanitizer.watched(path, tool, left)
        if finding.fault:
            check.fail(f"compute-sanitizer {tool}: {finding.words}")
        else:
            check.say(f"{tool}: {finding.words}")


def begin_comparison(check: Check) -> subprocess.Popen[str] | str:
    """Of the engine's logits with the CPU's, in a process of its own; or why there is none."""
    if missing := lacking(("gguf", "tokenizers")):
        return f"not compared without {' and '.join(missing)}"
    command = [sys.executable, "-m", "bench.cuda.engine", *engine.MODELS]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, process_group=0)


def end_comparison(check: Check, comparison: subprocess.Popen[str] | str) -> None:
    """What came of it."""
    if isinstance(comparison, str):
        check.say(comparison)
        return
    try:
        told, complaint = comparison.communicate(timeout=max(1, check.left(COMPARED)))
    except subprocess.TimeoutExpired:
        told = sanitizer.stop(comparison)
        check.say(f"{told}the rest was not reached in time")
        return
    check.say(told.rstrip())
    if comparison.returncode:
        last = complaint.strip().splitlines()[-1:] or ["logits are too far apart"]
        check.fail(f"the engine: {last[0]}")


def measure_all(check: Check, models: Mapping[str, Path]) -> None:
    """Ops and steps; goals and peers at the end."""
    clock = Clock(check.gpu)
    ceilings = probe(check.gpu, clock)
    check.say(
        f"copies at {ceilings.bandwidth / 1e9:,.0f} GB/s, multiplies at"
        f" {ceilings.peak / 1e12:,.0f} TFLOP/s, launches in {ceilings.launch * 1e6:.2f} us"
    )
    results = Results(check.folder / "results", conditions(), {"gpu": ceilings.to_json()})
    for rows in measured(check, clock, ceilings, models):
        check.rows += rows
        results.add(*rows)
        for row in rows:
            if row.contender == OURS and row.samples:
                check.say(f"  {row.title}: {row.median * 1e6:,.1f} us, {row.share:.1%}")
            elif row.contender == OURS:
                check.fail(f"{row.title}: {row.note}")
        if check.left() <= 0:
            check.say("the time is up: what would have followed is not measured")
            break
    check.say("goals, beside what was measured here as the limit:")
    for goal in GOALS:
        check.say("  " + goal.line(check.rows, ceilings))
    check.say("times as long as ours took:")
    for line in peers_lines(check.rows):
        check.say("  " + line)


def measured(
    check: Check, clock: Clock, ceilings: Ceilings, models: Mapping[str, Path]
) -> Iterator[list[Measurement]]:
    """Rows, what matters most first."""
    yield from of_ops(check, clock, ceilings, main_cases())
    shapes = read().models
    for name, kind in STEPS:
        missed = Measurement(
            bench="gpu", test="kernels of a step", target="cuda", format=kind, model=name
        )
        decode = partial(step.decode, check.gpu, clock, ceilings, name, shapes[name], kind)
        yield [one(decode, missed)]
    for name, path in models.items():
        missed = Measurement(bench="gpu", test="engine", target="cuda", model=name)
        yield [one(partial(engine.decoding, name, path, ceilings), missed)]
    yield from of_ops(check, clock, ceilings, further_cases())


def one(measured: Callable[[], Measurement], missed: Measurement) -> Measurement:
    """What is measured, or what is missed with the reason."""
    try:
        return measured()
    except Exception as error:  # a package that is not here, a file, too little memory
        return replace(missed, note=first_line(error))


def of_ops(
    check: Check, clock: Clock, ceilings: Ceilings, wanted: Iterator[OpCase]
) -> Iterator[list[Measurement]]:
    for case in wanted:
        try:
            yield measure(check.gpu, clock, ceilings, case)
        except Exception as error:  # too little memory, say
            yield [failed(case, error)]


def main_cases() -> Iterator[OpCase]:
    """Of goals. Each is made when it comes to be measured, since its weights are large."""
    llama = read().models["llama-2-7b"]
    for kind in GEMV:
        for size in cases.shapes_of(llama, output=True):
            yield cases.linear("GEMV", kind, 1, *size)
    yield cases.attention(llama, "F16", CELLS)
    for size in cases.shapes_of(llama, output=False):
        yield cases.linear("prefill", "F16", PROMPT, *size)


def further_cases() -> Iterator[OpCase]:
    llama = read().models["llama-2-7b"]
    for op in ("sparse_linear", "sparse_axpy"):
        for kind in ("F16", "Q4_0"):
            yield cases.sparse(op, llama, kind, 0.1)
    for size in cases.shapes_of(llama, output=False):
        yield cases.linear("prefill", "Q4_0", PROMPT, *size)
    for kind in ("BF16", "Q6_K"):
        for size in cases.shapes_of(llama, output=True):
            yield cases.linear("GEMV", kind, 1, *size)
    yield cases.attention(llama, "Q8_0", CELLS)
