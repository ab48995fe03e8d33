"""Lists the tensors of a model, and checks that its config demands just these; it imports no torch."""

import re
from dataclasses import dataclass
from pathlib import Path

from services.worker.engine.checkpoint.codes.byte_layout import has_bytes, joined_bytes
from services.worker.engine.checkpoint.codes.four_bit_floats import joined
from services.worker.engine.checkpoint.codes.packed_layout import joined_packed
from services.worker.engine.checkpoint.codes.transposed_layout import joined_transposed
from services.worker.engine.checkpoint.names.file_names import FileNames
from services.worker.engine.checkpoint.names.gguf_names import gguf_names
from services.worker.engine.checkpoint.names.tensor_view import LocatedTensor
from services.worker.engine.checkpoint.safetensors_file import read_header, weight_files
from services.worker.engine.checkpoint.stored_tensor import ITEM_BYTES, StoredTensor, same_samples
from services.worker.engine.config.families.registry import family_of
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.packed_weights import byte_forms, gptq_zeros_above
from services.worker.gguf.config import architecture_of
from services.worker.gguf.dequantize import can_dequantize
from services.worker.gguf.gguf_file import GgufTensor, is_gguf, read_gguf
from services.worker.gguf.header_bytes import BadGguf

# tensors of old files, which are computed from the config instead
_IGNORED = (r"rotary_emb\.inv_freq$",)
_ONE_ROW = "ffn_gate_inp_shexp.weight"  # a matrix of one row, which is stored as a vector


@dataclass(frozen=True, slots=True)
class TensorTable:
    """The tensors of a model.

    Attributes:
        model: The model's directory or file.
        tensors: By the names of the files.
    """

    model: Path
    tensors: dict[str, StoredTensor]

    def find(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """Finds a tensor and checks its shape and type.

        Args:
            shape: The whole tensor's shape, as the config demands it.

        Raises:
            ModelError: The tensor is missing, or has another shape or a type that is not supported.
        """
        stored = self.tensors.get(name)
        if stored is None:
            raise ModelError(f"{self.model}: tensor {name} is in none of the weight files")
        if stored.shape != shape:
            raise ModelError(
                f"{stored.path}: tensor {name} has shape {stored.shape}, {self._config} demands {shape}"
            )
        self._check_kind(name, stored)
        return stored

    def locate(self, config: ModelConfig) -> dict[str, LocatedTensor]:
        """Finds and checks all tensors that the config demands, by their canonical names.

        Raises:
            ModelError: One is missing, misshapen, of an unknown type, or superfluous.
        """
        names = file_names(self.model, config)
        views = names.views(config, self.tensors)
        located = {}
        for name, view in views.items():
            whole = self.tensors.get(view.stored)
            if whole is None or whole.shape != view.stored_shape:
                self.find(view.stored, view.stored_shape)
                continue
            part = view.part_of(whole)
            self._check_kind(view.stored, part)
            located[name] = LocatedTensor(view, part)
        self._refuse_others({view.stored for view in views.values()}, names, config)
        return located

    def check(self, config: ModelConfig) -> None:
        """Checks all tensors, as `locate`."""
        self.locate(config)

    def _refuse_others(self, used: set[str], names: FileNames, config: ModelConfig) -> None:
        if config.tied_embeddings:
            used = used | self._copies_of_embedding(names)
        ignored = re.compile("|".join((*_IGNORED, *names.ignored)))
        for name, stored in self.tensors.items():
            if name not in used and not ignored.search(name) and not names.is_later(name, config.num_layers):
                raise ModelError(
                    f"{stored.path}: tensor {name} has no place in the model that {self._config} describes; "
                    f"one of the two belongs to another model"
                )

    def _copies_of_embedding(self, names: FileNames) -> set[str]:
        """Heads in the files of a model whose embedding is its head.

        Raises:
            ModelError: One is another matrix.
        """
        found = [location.module + location.suffixes[0] for location in names.modules["lm_head"]]
        embedding = next(
            stored
            for name, stored in self.tensors.items()
            if name.endswith(
                tuple(location.module + ".weight" for location in names.modules["model.embed_tokens"])
            )
        )
        copies = {name for name in found if name in self.tensors}
        for name in copies:
            if not same_samples(self.tensors[name], embedding):
                raise ModelError(
                    f"{self.model}: {self._config} says that the embedding is the head too "
                    f"(`tie_word_embeddings`), but tensor {name} is another matrix; set it to false"
                )
        return copies

    def _check_kind(self, name: str, stored: StoredTensor) -> None:
        if stored.kind not in ITEM_BYTES and not (stored.scaled and len(stored.shape) == 2):
            supported = ", ".join(sorted(ITEM_BYTES))
            if stored.scaled:
                supported += ", because it is no matrix"
            raise ModelError(f"{stored.path}: tensor {name} has type {stored.kind}, supported: {supported}")

    @property
    def _config(self) -> str:
        """What describes the model's shape."""
        return "its metadata" if is_gguf(self.model) else "config.json"


def file_names(model: Path, config: ModelConfig) -> FileNames:
    """How the files of a model name tensors.

    Args:
        model: A directory in Hugging Face format, or a GGUF file.
    """
    if is_gguf(model):
        return names_in_file(model)
    family = family_of(config.architecture)
    assert family is not None  # read_config has accepted it
    return family.names


def stored_tensors(model: Path) -> dict[str, StoredTensor]:
    """All tensors of a model by the names of its files.

    Args:
        model: A directory in Hugging Face format, or a GGUF file.

    Raises:
        ModelError: A file is missing or damaged.
    """
    if is_gguf(model):
        return gguf_tensors(model)
    tensors: dict[str, StoredTensor] = {}
    for path in weight_files(model):
        for name, tensor in read_header(path).items():
            if name in tensors:
                raise ModelError(f"{path}: tensor {name} is in {tensors[name].path.name} as well; remove one")
            tensors[name] = tensor
    if any(name.endswith(".qweight") for name in tensors):
        tensors = joined_transposed(tensors, gptq_zeros_above(model))
    if has_bytes(tensors):
        tensors = joined_bytes(tensors, byte_forms(model))
    return joined_packed(joined(tensors))


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
