"""A model's config and tensors as graphs use them, read from a GGUF file and checked."""

from dataclasses import dataclass, replace

from engine.checks import check_further, check_tensors, further_tensors
from engine.config import ModelConfig, ModelError
from engine.gguf.file import GGUFFile
from engine.metadata.config import config_of
from engine.models import experts, mtp
from engine.models.family import Family, OfEach, Picked, Shaped
from engine.models.table import FAMILIES, parts_of
from engine.offload.bundle import Bundle, bundles, unbundled
from engine.options import Options
from engine.sparsity import with_sparsity


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's config, its family, bundled neurons by block, and notes: why a block skips no
    neurons, which tensors are unused."""

    config: ModelConfig
    family: Family
    bundles: dict[int, Bundle]
    notes: list[str]


def model_info(file: GGUFFile, options: Options) -> ModelInfo:
    """Read and check a file's model. Neuron bundles are replaced by the matrices they contain, and
    tensors are split into parts as graphs use them. Raises `ModelError`."""
    tensors = file.tensors
    if not tensors:
        raise ModelError(f"{file.path}: it has a vocabulary but no weights; use `assay tokenize`")
    embedding = tensors.get("token_embd.weight")
    vocab = embedding.dims[0] if embedding and len(embedding.dims) == 2 else 0
    try:
        config = config_of(file.metadata, vocab)
    except ModelError as error:
        raise ModelError(f"{file.path}: {error}") from None
    family = FAMILIES[config.architecture]
    found = bundles(file)
    tensors |= unbundled(found)
    for bundle in found.values():
        del tensors[bundle.name]
    config, notes = with_sparsity(config, file, options.sparse, options.threshold, options.union)
    if config.has_attention(0) and "blk.0.attn_qkv.weight" in tensors:
        config = replace(config, fused_qkv=True)
    routed = filter(config.is_mixture, range(config.blocks))
    if config.experts and any(f"blk.{i}.{experts.BOTH}.weight" in tensors for i in routed):
        config = replace(config, experts=replace(config.experts, joined=True))
    check_tensors(file, family, config)
    needed, parts = family.expected_tensors(config), parts_of(config)
    if options.mtp:
        check_further(file, config)
        needed |= mtp.expected_tensors(config)
        parts |= mtp.parts(config)
    elif left := further_tensors(tensors, config):
        notes = [*notes, f"{len(left)} tensors of multi-token-prediction blocks are unused"]
    for name, dims in needed.items():
        tensors[name] = replace(tensors[name], dims=dims)  # one row may be stored as a vector
    for name, rows in parts.items():
        whole = tensors.get(rows.tensor)
        if whole is None:
            continue
        if isinstance(rows, Shaped):
            tensors[name] = replace(whole, name=name, dims=rows.dims)
            if tensors[name].row_bytes * rows.dims[0] != whole.n_bytes:
                raise ModelError(
                    f"{file.path}: tensor {rows.tensor} is in {whole.type_name}: rows of"
                    f" {rows.dims[-1]} elements are not whole blocks"
                )
        elif isinstance(rows, OfEach):
            tensors[name] = whole.of_each(name, rows.first, rows.count)
        elif isinstance(rows, Picked):
            picked = whole.only(name, rows.numbers, rows.matrices)
            tensors[name] = picked.turned_round() if rows.turned else picked
        elif rows.each:
            tensors[name] = whole.only(name, rows.numbers)
        else:
            tensors[name] = whole.rows(name, rows.first, rows.count)
    return ModelInfo(config, family, found, notes)
