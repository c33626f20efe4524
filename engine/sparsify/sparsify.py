"""From a dense model and a text to a sparse model: gather, train, export. Wants PyTorch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.atomic_write import check as check_out
from engine.gguf.file import GGUFFile
from engine.options import Options, Progress
from engine.placement import statistics
from engine.sparsify.activation import Perplexities, perplexities
from engine.sparsify.export import Predictor, check, export
from engine.sparsify.gather import gather, is_held_out
from engine.sparsify.train import THRESHOLD, Judged, Training, train
from kernels.certify import Certified
from kernels.cpu.runtime.cores import physical_cores


@dataclass(frozen=True, slots=True)
class Watchers:
    """Progress callbacks: kernels certified, passages read (done and total), training (block, rank
    and steps done), and bytes written (done and total)."""

    certified: Certified | None = None
    read: Callable[[int, int], None] | None = None
    trained: Callable[[int, int, int], None] | None = None
    written: Callable[[int, int], None] | None = None


@dataclass(frozen=True, slots=True)
class BlockMade:
    """The predictor's rank, the share of neurons active over all tokens read, and the predictor's
    quality on held-out tokens."""

    rank: int
    active_share: float
    judged: Judged


@dataclass(frozen=True, slots=True)
class Made:
    """The blocks, and the dense model's perplexities on held-out text."""

    blocks: Sequence[BlockMade]
    perplexities: Perplexities


def sparsify(
    path: Path,
    passages: Sequence[Sequence[int]],
    out: Path,
    training: Training,
    *,
    keep_statistics: Path | None = None,
    threads: int = 0,
    watchers: Watchers | None = None,
) -> Made:
    """Write the sparse model `out` of the dense model at `path`, whose gates are ReLU's.

    Predictors train on `passages`, lists of tokens each read on its own; activation counts go to
    `keep_statistics`, a folder or .npz. Raises `SparsifyError`, `OutputError` and the errors of
    loading a model, and then leaves nothing of `out`.
    """
    watchers = watchers or Watchers()
    with GGUFFile(path) as file:
        blocks = check(file)
        check_out(out, path)
        options = Options(threads=threads, progress=Progress(watchers.certified))
        with gather(path, passages, out.parent, options, watchers.read) as gathered:
            held_out = [p for i, p in enumerate(passages) if is_held_out(i, len(passages))]
            fit = perplexities(path, held_out, options)
            if keep_statistics:
                counts, model = tuple(gathered.counts), statistics.identity(file)
                found = statistics.Activations(counts, gathered.tokens, model)
                statistics.write(keep_statistics, found)
            shares = gathered.counts.mean(axis=1) / gathered.tokens
            predictors: list[Predictor] = []
            made: list[BlockMade] = []
            with _torch_threads(threads):
                for i in range(blocks):

                    def progress(rank: int, step: int, block: int = i) -> None:
                        if watchers.trained:
                            watchers.trained(block, rank, step)

                    predictor, judged = train(
                        gathered.block(i), gathered.held_out, training, progress
                    )
                    predictors.append(predictor)
                    made.append(BlockMade(predictor.rank, float(shares[i]), judged))
        export(
            file, out, predictors, THRESHOLD, threads=threads, progress=watchers.written,
            certified=watchers.certified,
        )  # fmt: skip
    return Made(made, fit)


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads or physical_cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)
