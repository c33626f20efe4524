"""Convert story models to GGUF files, and back."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, LlamaFileType
from tokenizers import Tokenizer

from data.story.model import Llama, Shape
from data.story.tokens import BEGIN_ID, END_ID

Type = GGMLQuantizationType
FILE_TYPES = {
    Type.F16: LlamaFileType.MOSTLY_F16,
    Type.Q8_0: LlamaFileType.MOSTLY_Q8_0,
}

# The conversation is one text: what the user writes begins it, the assistant goes on. A space goes
# between two messages unless the later one begins with a space or with punctuation.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if not loop.first and message['content'][:1] not in ' ,.!?' %}{{ ' ' }}{% endif %}"
    "{{ message['content'] }}{% endfor %}"
)


def write(
    file: Path,
    model: Llama,
    tokenizer: Tokenizer,
    form: GGMLQuantizationType,
    name: str,
    about: str,
) -> None:
    """Matrices in `form`, norms in F32."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name(name)
    writer.add_description(about)
    writer.add_license("MIT")
    writer.add_file_type(FILE_TYPES[form])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    write_shape(writer, model.shape)
    write_vocabulary(writer, tokenizer)
    for tensor_name, tensor in model.state_dict().items():
        weight = tensor.float().numpy()
        if weight.ndim == 1:
            writer.add_tensor(tensor_name, weight)
        else:
            writer.add_tensor(tensor_name, gguf.quants.quantize(weight, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocabulary)


def write_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """The vocabulary in GPT-2's spelling of bytes, with its merges in order."""
    size = tokenizer.get_vocab_size()
    control = {BEGIN_ID, END_ID}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokenizer.id_to_token(i) for i in range(size)])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in control else gguf.TokenType.NORMAL for i in range(size)]
    )
    writer.add_token_merges(merges(tokenizer))
    writer.add_bos_token_id(BEGIN_ID)
    writer.add_eos_token_id(END_ID)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)


def merges(tokenizer: Tokenizer) -> list[str]:
    """Pairs "left right", first learned first."""
    return [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def read(file: Path, shape: Shape) -> Llama:
    """The model in a file, its weights dequantised to f32."""
    model = Llama(shape)
    weights = {
        tensor.name: torch.from_numpy(
            np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        )
        for tensor in gguf.GGUFReader(file).tensors
    }
    model.load_state_dict(weights)
    return model
