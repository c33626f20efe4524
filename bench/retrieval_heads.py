"""Which heads of a model look far back: a file for `--kv-policy duoattention:heads=FILE`.

`python -m bench.retrieval_heads MODEL -o FILE` has the model read tales that end with a question
for a fact and its answer (data/story/tales.py), the facts at all depths, and measures by the
engine's own kernels which part of the answer's attention each head gives to what it would not see
as a streaming one (engine/policies/retrieval.py). With `--text FILE` it reads that instead, in
pieces of as many tokens.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.needle import ANSWER, THOROUGH, looked_up
from engine.embedded import resolve
from engine.gguf.file import GGUFFile
from engine.policies.retrieval import alphas, write
from engine.tokenizer import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.retrieval_heads", description=__doc__)
    parser.add_argument("model", help="a GGUF file, or an embedded model")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--text", type=Path, help="read this instead of tales")
    parser.add_argument("--tokens", type=int, default=2048, help="of each text (%(default)s)")
    parser.add_argument("--tales", type=int, default=2, help="each asked six times (%(default)s)")
    parser.add_argument("--sinks", type=int, default=128, help="cells (%(default)s)")
    parser.add_argument("--recent", type=int, default=256, help="cells (%(default)s)")
    parser.add_argument(
        "--observers", type=int, default=ANSWER,
        help="tokens at the end of each text that look back (%(default)s)",
    )  # fmt: skip
    parser.add_argument("-t", "--threads", type=int, default=0, help="0: one per core")
    options = parser.parse_args()
    path = resolve(options.model)
    with GGUFFile(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    if options.text:
        tokens = tokenizer.encode(options.text.read_text())
        whole = range(0, len(tokens) - options.tokens + 1, options.tokens)
        texts = [tokens[at : at + options.tokens] for at in whole]
    else:
        effort = replace(THOROUGH, tales=options.tales, tokens=options.tokens)
        texts = looked_up(tokenizer, effort)
    if not texts:
        parser.error(f"{options.text} has no {options.tokens} tokens")
    found = alphas(path, texts, options.sinks, options.recent, options.observers, options.threads)
    write(options.output, found)
    for block, own in enumerate(found):
        print(f"blk.{block}  " + "  ".join(f"{number:.3f}" for number in own))
    print(f"{len(texts)} texts; half of all heads look back by {np.median(found):.3f} or more")


if __name__ == "__main__":
    main()
