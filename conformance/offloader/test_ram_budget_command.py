"""`--ram-budget` on the command line: errors are one plain line, and nothing is left behind."""

import json
import re
from typing import Any

import pytest

from conformance.support.budgets import bits, budgeted, packed_of, to_the_byte, truth_of, wanted
from conformance.support.files.full_disk import small_disk
from conformance.support.files.page_cache import pages_kept
from conformance.support.models.small_models import Small
from conformance.support.program import fault, misuse
from engine.compile import packed_weights
from engine.config import ModelError
from engine.offload import direct_file
from engine.options import Options
from engine.passes.observe import observe

pytestmark = pytest.mark.usefixtures("timeout")
SMALL = Small(format="Q8_0", hidden=256, ffn=512, vocab=300)


@pytest.fixture
def path(tmp_path):
    return SMALL.write(tmp_path / "small.gguf")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder of its own for packed weights."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(packed_weights, "cache_folder", lambda: folder)
    return folder


def test_perplexity_is_that_of_the_resident_model(inside, path, tmp_path):
    """Streamed weights give the perplexity of resident ones."""
    text, words = tmp_path / "text.txt", ("--json", "-c", "32", "-t", "1")
    text.write_text("5 6 7 8 9 " * 40)

    def told(*more: str) -> dict[str, Any]:
        code, out, error = inside("perplexity", path, text, *words, *more)
        assert code == 0, error
        found: dict[str, Any] = json.loads(out)
        return found

    whole = told()
    with to_the_byte():
        streamed = told("--ram-budget", str(wanted(path).least))
    assert streamed["perplexity"] == whole["perplexity"]
    assert any("MB are read for each step" in note for note in streamed["notes"])


NONSENSE = ("much", "-5MiB", "5 miles", "MiB", "0x10", "1e9", "nan", "inf", "5MiBMiB", "5,5GB", " ")


@pytest.mark.parametrize("size", NONSENSE)
def test_invalid_sizes_are_refused(size, inside, path):
    line = misuse(inside("run", path, "-p", "a", f"--ram-budget={size}"))
    assert line.startswith(f"assay: --ram-budget is {size!r}, which is no size: want e.g. 600MiB")


@pytest.mark.parametrize("size", ["0.5kB", "0MiB", "1"])
def test_budgets_below_the_minimum_are_refused(size, inside, path, cache):
    """They are refused before anything is packed."""
    line = fault(inside("run", path, "-p", "a", "--ram-budget", size))
    assert line.startswith(
        "a --ram-budget of 0 MiB is too small for this model: it needs at least "
    )
    assert not list(cache.iterdir())


@pytest.mark.parametrize("size", ["1000TB", "9" * 400, f"{'9' * 400}TB", "1000000.5GiB"])
def test_large_budgets_keep_all_in_memory(size, inside, path):
    """All weights stay in memory."""
    code, told, error = inside("run", path, "-p", "", "-n", "1", "--ram-budget", size, "--json")
    assert code == 0, error
    assert any("stay in memory" in note for note in json.loads(told)["notes"])


def test_options_that_exclude_a_budget_are_refused(inside, path):
    """Two answers to what does not fit."""
    line = misuse(inside("run", path, "-p", "a", "--ram-budget", "1GB", "--vram-budget", "1"))
    assert line.startswith("assay: --ram-budget and --vram-budget exclude each other")
    with pytest.raises(ModelError, match=r"^ram_budget and passes exclude each other$"):
        Options(ram_budget="1GB", passes=(observe,))
    with pytest.raises(ModelError, match=r"^neuron_window must be at least 0, got -1$"):
        Options(ram_budget="1GB", neuron_window=-1)


def test_statistics_without_a_budget_are_refused(inside, path):
    """They would be of no use, and nobody would notice."""
    line = misuse(inside("run", path, "-p", "a", "--activation", "counts.npz"))
    told = "--activation needs a --ram-budget or a --vram-budget"
    assert line.startswith(f"assay: {told}")


def test_a_full_disk_while_packing(inside, path, cache):
    """The line names the place, the number of bytes wanted, and the remedy."""
    with small_disk(cache, 2**18):
        line = fault(inside("run", path, "-p", "a", "--ram-budget", "1000GB"))
        assert not [found for found in cache.rglob("*") if found.is_file()]
    assert re.fullmatch(
        rf"packed weights cannot be kept in {cache}/packed: (no space left on device|file too"
        r" large); a --ram-budget wants \d+\.\d GB there \(ASSAY_CACHE names another folder\)",
        line,
        re.IGNORECASE,
    )


def test_unwritable_cache_folders_are_refused(inside, path, cache):
    """Here because it is no folder."""
    (cache / "packed").write_text("a file")
    line = fault(inside("run", path, "-p", "a", "--ram-budget", "1000GB"))
    assert line.startswith(f"packed weights cannot be kept in {cache}/packed: File exists; ")


def test_without_o_direct(path, cache, monkeypatch):
    """Without O_DIRECT the engine uses the page cache, says so, and leaves nothing there."""
    truth = truth_of(path)
    monkeypatch.setattr(direct_file, "_accepts", lambda *_: False)
    with budgeted(path, wanted(path).least, threads=2) as model:
        assert bits(model) == truth
        kept = packed_of(path)
        assert f"{kept}: its file system reads through the page cache only" in model.notes
    assert pages_kept(kept) <= 1  # the last, which is not whole
