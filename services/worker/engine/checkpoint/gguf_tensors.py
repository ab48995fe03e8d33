"""Lists the tensors of a GGUF file as the engine reads them, under the names of Hugging Face."""

from pathlib import Path

from services.worker.engine.checkpoint.stored_tensor import ITEM_BYTES, StoredTensor
from services.worker.engine.config.json_fields import ModelError
from services.worker.gguf.architectures.base import head_dim
from services.worker.gguf.dequantize import can_dequantize
from services.worker.gguf.gguf_file import GgufTensor, read_gguf
from services.worker.gguf.header_bytes import BadGguf
from services.worker.gguf.metadata_fields import MetadataFields
from services.worker.gguf.tensor_names import has_interleaved_heads, hf_names


def gguf_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a model by name.

    Raises:
        ModelError: The file is damaged, or its architecture is not supported.
    """
    try:
        file = read_gguf(path, vocabulary=False)
        rows = head_dim(MetadataFields(file))
        return {
            name: _stored(file.tensors[stored], rows if has_interleaved_heads(file, name) else 0)
            for stored, name in hf_names(file).items()
        }
    except BadGguf as error:
        raise ModelError(str(error)) from error


def _stored(tensor: GgufTensor, interleaved_head: int) -> StoredTensor:
    kind = tensor.type.name
    return StoredTensor(
        path=tensor.path,
        kind=kind,
        shape=tensor.shape,
        begin=tensor.begin,
        end=tensor.end,
        blocks=tensor.type if kind not in ITEM_BYTES and can_dequantize(tensor.type) else None,
        interleaved_head=interleaved_head,
    )
