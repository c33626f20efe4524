"""Weight formats: laws, and bit-exact agreement with the `gguf` package."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.testing import assert_array_equal

from conformance.support.machine_kernels import HERE, each, run
from reference.formats import FORMATS, grids
from reference.table import OPS
from reference.values import FINITE, VALUES

NAMES = tuple(FORMATS)
READ = tuple(name for name in NAMES if not FORMATS[name].encode)
FITTED = "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"  # gguf cannot write these
WRITTEN = tuple(name for name in NAMES if name not in FITTED + READ)
every_format = pytest.mark.parametrize("name", NAMES)


def rows(values: str, seed: int = 0) -> np.ndarray:
    """float32 [64, 256] of a kind of values."""
    return VALUES[values](np.random.default_rng(seed), (64, 256))


def random_bytes(name: str, seed: int = 0) -> np.ndarray:
    """Blocks of arbitrary bytes, as a file may hold them, NaN and infinite scales included."""
    row_bytes = FORMATS[name].row_bytes(256)
    return np.random.default_rng(seed).integers(0, 256, (64, row_bytes), np.uint8)


@every_format
def test_block_sizes_equal_the_gguf_packages(name):
    """Type number, elements and bytes of a block agree with gguf's table."""
    kind = GGMLQuantizationType[name]
    assert FORMATS[name].gguf_type == kind.value
    assert (FORMATS[name].block, FORMATS[name].block_bytes) == gguf.GGML_QUANT_SIZES[kind]


@each("quantise", formats=WRITTEN)
@pytest.mark.parametrize("values", sorted({*FINITE} - {"subnormal"}))  # they cast infinity to int8
def test_quantised_rows_equal_the_gguf_packages(kernel, values):
    """Reference and kernels write the bytes that gguf.quants writes."""
    x = rows(values) + np.float32(0)  # of two zeros theirs may take either for the least
    with np.errstate(over="ignore"):
        theirs = quants.quantize(x, GGMLQuantizationType[kernel.format]).view(np.uint8)
    assert_array_equal(FORMATS[kernel.format].quantise(x), theirs.reshape(64, -1))
    assert_array_equal(run(kernel, x=x), theirs.reshape(64, -1))


@each("dequantise")
def test_decoded_values_equal_the_gguf_packages(kernel):
    """Reference and kernels read any bytes as gguf.quants does."""
    data = random_bytes(kernel.format)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = data.view({"F32": np.float32, "F16": np.float16}.get(kernel.format, np.uint8))
        theirs = quants.dequantize(stored, GGMLQuantizationType[kernel.format])
        ours = FORMATS[kernel.format].dequantise(data)
    assert_array_equal(ours, theirs)
    assert_array_equal(run(kernel, data=data), theirs)


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_grids_equal_the_gguf_packages(name):
    """An index names the same values in the same order."""
    theirs = getattr(quants, name)
    theirs.init_grid()
    ours = getattr(grids, "IQ1" if name == "IQ1_S" else name)
    of_eighths = {"IQ1_S": 8, "IQ3_XXS": 2, "IQ3_S": 8}.get(name, 1)
    assert_array_equal(ours, of_eighths * theirs.grid.reshape(theirs.grid_shape))


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("values", sorted(FINITE))
def test_random_blocks_have_the_requested_magnitudes(name, values):
    """Their largest magnitudes are those of the values, within a float16 scale's rounding."""
    kind, x = FORMATS[name], rows(values).clip(-65504, 65504)  # beyond, no scale need be found
    drawn = kind.dequantise(kind.random_like(x, np.random.default_rng(1)))
    assert_array_equal(drawn, kind.dequantise(kind.random_like(x, np.random.default_rng(1))))
    largest = np.abs(x).max(axis=1)
    # half a step of d: relative, or the least float16 times the largest scale, 31 * 124 / 8
    np.testing.assert_allclose(np.abs(drawn).max(axis=1), largest, 2.0**-11, 2.0**-25 * 481)


@pytest.mark.parametrize("name", [n for n in NAMES if FORMATS[n].scaled])
def test_random_rows_include_extreme_scales(name):
    """Random rows include extreme finite scales; corrupted ones also others."""
    kind, rng = FORMATS[name], np.random.default_rng(0)
    drawn = kind.random_rows(VALUES["normal"](rng, (5000, 256)), rng)
    assert np.isfinite(kind.dequantise(drawn)).all()
    blocks = drawn.reshape(-1, kind.block_bytes)
    for scale in (0, 2.0**-24, -(2.0**-24), 65504, -65504):
        same = kind.scaled(blocks, np.full((len(blocks), 2), scale, np.float32)) == blocks
        assert same.all(axis=1).any(), scale
    for scale in (np.inf, np.nan):
        corrupted = kind.dequantise(kind.with_scale(drawn, scale, rng))
        strange = ~np.isfinite(corrupted).all(axis=1)
        assert 0.05 < strange.mean() < 0.3
        assert np.isfinite(corrupted[~strange]).all()


@pytest.mark.parametrize("name", READ)
def test_read_only_formats_refuse_to_quantise(name):
    """Quantising to it is an error that names it, and the op does not list it."""
    with pytest.raises(ValueError, match=f"{name} cannot be quantised to"):
        FORMATS[name].quantise(np.zeros((1, 256), np.float32))
    assert name not in OPS["quantise"].formats
    assert name in OPS["dequantise"].formats


@each("dequantise", formats=("F16", "BF16"))
def test_all_16_bit_patterns_round_trip(kernel):
    """All 65536 patterns decode and encode to themselves; a NaN stays a NaN."""
    quantise = next(k for k in HERE if (k.op, k.format) == ("quantise", kernel.format))
    patterns = np.arange(65536, dtype=np.uint16).view(np.uint8)[None]
    decoded = run(kernel, data=patterns)
    assert_array_equal(decoded, FORMATS[kernel.format].dequantise(patterns))
    again = run(quantise, x=decoded)
    number = ~np.isnan(decoded[0])
    assert_array_equal(again.view(np.uint16)[:, number], patterns.view(np.uint16)[:, number])
    assert_array_equal(np.isnan(run(kernel, data=again)[0]), ~number)


@each("quantise", formats=("BF16",))
def test_nan_is_encoded_as_in_the_reference(kernel):
    """A NaN becomes quiet, and keeps its sign and upper bits."""
    bits = np.array([[0x7FC00000, 0xFFC00000, 0x7FE12345, 0x7F812345]], np.uint32)
    x = bits.view(np.float32)
    assert_array_equal(run(kernel, x=x), FORMATS[kernel.format].quantise(x))


@pytest.mark.parametrize("name", [n for n in NAMES if FORMATS[n].block > 1])
def test_partial_blocks_are_refused(name):
    """A row that is not a whole number of blocks is an error that says what fits."""
    with pytest.raises(ValueError, match=f"{name} rows hold multiples of {FORMATS[name].block}"):
        FORMATS[name].quantise(np.zeros((1, 33), np.float32))
