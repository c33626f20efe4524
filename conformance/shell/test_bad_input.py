"""Bad input of the program ends in one plain line: wrong usage before a model is read, other errors
with the name that was typed."""

import shlex

import pytest

from conformance.support.child import run
from conformance.support.models.small_models import Small
from conformance.support.program import PROGRAM, fault, misuse

SMALL = Small(blocks=1)
MISUSES = [  # words, of a model that is not there, and what the line says
    ("fly", "No such command"),
    ("run", "Missing argument"),
    ("run none.gguf --wings", "No such option"),
    ("run none.gguf --tensor-split 3,1", "is an option of llama.cpp; here: one GPU is used"),
    ("run none.gguf -p 5 -f prompt.txt", "not both"),
    ("run none.gguf -p 5 -n many", "-n is 'many': "),
    ("run none.gguf -p 5 --top-k many", "--top-k is 'many': "),
    ("run none.gguf -p 5 --temp -1", "--temp is -1.0: want a number from 0 to 1e+06"),
    ("run none.gguf -p 5 --temperature -1", "--temperature is -1.0: want a number"),
    ("run none.gguf -p 5 --top-p 1.5", "--top-p is 1.5: want a number from 0 to 1, but not 0"),
    ("run none.gguf -p 5 --seed -3", "--seed is -3: want a whole number from 0 up, or -1"),
    ("run none.gguf -p 5 -n -3", "-n is -3: want a number from 0 up, -1 or -2"),
    ("run none.gguf -p 5 --n-predict -5", "--n-predict is -5: want a number from 0 up, -1 or -2"),
    ("run none.gguf -p 5 -t 300", "-t must be 0 to 256, got 300"),
    ("run none.gguf -p 5 -b 0", "-b must be at least 1, got 0"),
    ("run none.gguf -p 5 --batch-size 0", "--batch-size must be at least 1, got 0"),
    ("run none.gguf -p 5 -c -5", "-c must be at least 0, got -5"),
    ("run none.gguf -p 5 --ctx-size -1", "--ctx-size must be at least 0, got -1"),
    ("run none.gguf -p 5 -c 99999999999999", "-c must be at most 16777216, got 99999999999999"),
    ("run none.gguf -p 5 --kv Q9", "--kv is 'Q9': want"),
    ("run none.gguf -p 5 -ctk f16 -ctv q8_0",
     "keys and values have one format here: -ctk f16 and -ctv q8_0"),
    ("run none.gguf -p 5 --numerics quick", "--numerics is 'quick': want exact or fast"),
    ("run none.gguf -p 5 --repeat-last-n -2", "--repeat-last-n is -2"),
    ("run none.gguf -p 5 -l 5", "-l '5': want a token's id, + or - and a number"),
    ("run none.gguf -p 5 --order best", "--order is 'best': want llama.cpp or vllm"),
    ("chat none.gguf --top-k -5", "--top-k is -5"),
    ("batch none.gguf {empty} -n 0", "-n is 0"),
    ("batch none.gguf {empty} -np 0", "-np is 0"),
    ("batch none.gguf {empty} --top-p 3", "--top-p is 3.0"),
    ("embed none.gguf a --pooling max", "--pooling is 'max'"),
    ("quantize {model} out.gguf Q9", "there is no type"),
    ("quantize none.gguf out.gguf Q4_0 --tensor-type attn_q", "attn_q: want REGEX=FORMAT"),
    ("inspect none.gguf --set general.name=x", "--set and --remove go with -o OUT"),
    ("inspect none.gguf -o x.gguf", "and -o with one of them"),
    ("op linear --shape tokens=x", "--shape wants axis=size"),
    ("op levitate", "there is no op 'levitate'"),
    ("op linear --shape wings=2", "linear has no axis 'wings'"),
    ("op linear --format Q9_9", "linear has no format 'Q9_9'"),
    ("op linear --values odd", "linear has no values 'odd'"),
    ("op linear --variant fast", "no variant 'fast'"),
]  # fmt: skip
FAULTS = [  # of what is there, or is not, and what the line says
    ("run {model} -p '5 6 7' -c 2", "the prompt has 4 tokens, the context holds 2"),
    ("run {model} -p 5 --keep 500", "--keep must be 0 to 127, got 500"),
    ("run {model} -f {folder}/none", "No such file"),
    ("run {model} -f {folder}", "directory"),
    ("run {model} -f {bytes}", "{bytes}: byte 4 is not valid UTF-8"),
    ("run {folder}/none.gguf -p 5", "none.gguf"),
    ("run {folder} -p 5", "{folder}: this is not a file"),
    ("run {empty} -p 5", "{empty}: the file is empty"),
    ("tokenize {folder} 5", "{folder}: this is not a file"),
    ("tokenize {empty} 5", "{empty}: the file is empty"),
    ("plan {folder}", "{folder}: this is not a file"),
    ("plan {empty}", "{empty}: the file is empty"),
    ("inspect {model} --key nothing", "nothing"),
    ("embed {model} -f {blank}", "{blank}: there is no text"),
    ("op softmax --threads 999", "threads: want 1 to 256"),
    ("perplexity story {empty}", "{empty}: the text is empty"),
    ("perplexity story {short}",
     "{short}: the text has 5 tokens: want at least 1024, which is 2 chunks of 512"),
    ("perplexity story {bytes}", "{bytes}: byte 4 is not valid UTF-8"),
    ("perplexity story {folder}/none", "No such file"),
    ("perplexity story {short} -c 4", "chunk has at least 8"),
    ("perplexity story {short} --chunks 0", "chunks must be"),
    ("imatrix story {short} -o {folder}/i.gguf", "short: the text has"),
    ("imatrix story {folder}/none.txt -o {folder}/i.gguf", "none.txt: "),
    ("quantize {model} {folder}/o.gguf Q4_0 --imatrix {folder}/i", "i: cannot be read"),
    ("quantize {model} {folder}/o.gguf Q4_0 --imatrix {short}",
     "{short}: this is no importance matrix, or it was cut short"),
    ("quantize {folder}/none.gguf {folder}/o.gguf Q4_0", "no such file"),
    ("quantize {short} {folder}/o.gguf Q4_0", "not a GGUF file"),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model, and invalid texts."""
    folder = tmp_path_factory.mktemp("bad")
    texts = {"empty": b"", "blank": b"\n", "short": b"Once upon a time\n", "bytes": b"5 6 \xff"}
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    model = SMALL.write(folder / "small.gguf")
    return {"folder": folder, "model": model, **{name: folder / name for name in texts}}


@pytest.mark.parametrize(("words", "line"), MISUSES)
def test_wrong_usage(inside, files, words, line):
    """Exit status 2, and one line with the value, what is allowed, and the option as typed."""
    assert line in misuse(inside(*shlex.split(words.format(**files))))


@pytest.mark.parametrize(("words", "line"), FAULTS)
def test_bad_input_is_one_line(inside, files, words, line):
    """Exit status 1, one line that names the file or the option, and nothing is written."""
    before = sorted(files["folder"].iterdir())
    assert line.format(**files) in fault(inside(*shlex.split(words.format(**files))))
    assert sorted(files["folder"].iterdir()) == before


def test_program_bounds_its_memory(tmp_path):
    """A file that claims two billion blocks is refused within seconds and little memory."""
    path = tmp_path / "vast.gguf"
    SMALL.write(path, block_count=2**31 - 1)
    limit = f"ulimit -v {4 * 2**20}; exec {PROGRAM} run {path} -p 5"
    done = run("sh", "-c", limit, timeout=60)
    assert "block_count" in fault((done.returncode, done.stdout, done.stderr))
