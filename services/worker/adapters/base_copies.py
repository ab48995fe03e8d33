"""Weights of the base in an adapter's file, as PEFT saves them when the head is a target.

They must be the base's: a vocabulary that was changed for training, or a head that was trained as a whole, is
another matrix.
"""

from collections.abc import Mapping
from pathlib import Path

from services.worker.adapters.base_model import BaseModel
from services.worker.adapters.description import AdapterError
from services.worker.adapters.stored_pair import NamedTensor
from services.worker.engine.checkpoint.stored_tensor import same_samples
from services.worker.engine.checkpoint.tensor_table import file_names, stored_tensors
from services.worker.engine.config.json_fields import ModelError
from services.worker.model_files.json_files import shown

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def refuse_other_weights(path: Path, copies: Mapping[str, NamedTensor], base: BaseModel) -> None:
    """Refuses weights that are not the head or the embedding of the base.

    Args:
        path: Of the adapter's file.
        copies: By module.

    Raises:
        AdapterError: One is another matrix.
    """
    if not copies:
        return
    try:
        stored = stored_tensors(base.path)
        own = file_names(base.path, base.config).views(base.config, stored)
    except ModelError as error:
        raise AdapterError(str(error)) from error
    theirs = base.names.views(base.config, {f"{module}.weight" for module in copies})
    for module, copy in copies.items():
        kinds = [kind for kind in (_HEAD, _EMBEDDING) if theirs[kind].stored == f"{module}.weight"]
        if not kinds:
            raise AdapterError(
                f"{path}: tensor {shown(copy.name)} is no matrix of a LoRA; if it is a whole module, train "
                "without modules_to_save"
            )
        # a tied head is the embedding
        found = [stored[own[kind].stored] for kind in (*kinds, _EMBEDDING) if own[kind].stored in stored]
        if not same_samples(copy.stored, found[0]):
            raise AdapterError(
                f"{path}: tensor {shown(copy.name)} is not the base's; if it was not trained, save the "
                "adapter with save_embedding_layers=False"
            )
