"""Lists the tensors of a GGUF file as the engine reads them, under the names of the file."""

from pathlib import Path

from services.worker.engine.checkpoint.names.file_names import FileNames
from services.worker.engine.checkpoint.names.gguf_names import gguf_names
from services.worker.engine.checkpoint.stored_tensor import ITEM_BYTES, StoredTensor
from services.worker.engine.config.json_fields import ModelError
from services.worker.gguf.dequantize import can_dequantize
from services.worker.gguf.gguf_config import architecture_of
from services.worker.gguf.gguf_file import GgufTensor, read_gguf
from services.worker.gguf.header_bytes import BadGguf

_ONE_ROW = "ffn_gate_inp_shexp.weight"  # a matrix of one row, which is stored as a vector


def gguf_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a model by name.

    Raises:
        ModelError: The file is damaged.
    """
    try:
        file = read_gguf(path, vocabulary=False)
    except BadGguf as error:
        raise ModelError(str(error)) from error
    return {name: _stored(tensor) for name, tensor in file.tensors.items()}


def names_in_file(path: Path) -> FileNames:
    """How the tensors of a file are named.

    Raises:
        ModelError: The file is damaged, or its architecture is not supported.
    """
    try:
        return gguf_names(architecture_of(read_gguf(path, vocabulary=False)))
    except BadGguf as error:
        raise ModelError(str(error)) from error


def _stored(tensor: GgufTensor) -> StoredTensor:
    kind, shape = tensor.type.name, tensor.shape
    if tensor.name.endswith(_ONE_ROW) and len(shape) == 1:
        shape = (1, *shape)
    return StoredTensor(
        path=tensor.path,
        kind=kind,
        shape=shape,
        begin=tensor.begin,
        end=tensor.end,
        blocks=tensor.type if kind not in ITEM_BYTES and can_dequantize(tensor.type) else None,
    )
