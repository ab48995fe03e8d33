"""Finds the output head that an adapter has as a whole (`modules_to_save` of PEFT); refuses other modules."""

from collections.abc import Mapping
from pathlib import Path

from services.worker.adapters.base_model import BaseModel
from services.worker.adapters.description import AdapterError
from services.worker.adapters.peft_config import PeftConfig
from services.worker.adapters.stored_pair import NamedTensor
from services.worker.adapters.targets import HEAD
from services.worker.model_files.json_files import shown


def take_whole_head(
    path: Path,
    config: PeftConfig,
    copies: dict[str, NamedTensor],
    downs: Mapping[str, NamedTensor],
    base: BaseModel,
) -> NamedTensor | None:
    """Takes the head out of the weights of a file.

    Args:
        path: Of the adapter's file.
        copies: Whole weights, by module.
        downs: First matrices of pairs, by module.

    Returns:
        None if no module is whole.

    Raises:
        AdapterError: Another module is whole, or the head is not as the config says.
    """
    if not config.whole_modules:
        return None
    modules = [location.module for location in base.names.modules[HEAD]]
    for name in config.whole_modules:
        if not any(module == name or module.endswith(f".{name}") for module in modules):
            raise AdapterError(
                f"{config.path}: `modules_to_save` has {shown(name)}, and only the output head "
                f"({modules[0]}) is served as a whole; train without it"
            )
    if base.config.head_bias:
        raise AdapterError(
            f"{config.path}: `modules_to_save` has the output head, and a head with a bias is not served as "
            "a whole; make it a target instead"
        )
    module = next((one for one in modules if one in copies), None)
    if module is None:
        raise AdapterError(
            f"{path} holds no {config.whole_modules[0]}.weight, which `modules_to_save` names; export the "
            "adapter again"
        )
    if module in downs:
        raise AdapterError(f"{path}: {module} is a target and a whole module; train it as one of these")
    head, wanted = copies.pop(module), [base.config.vocab_size, base.config.hidden_size]
    if list(head.stored.shape) != wanted:
        raise AdapterError(
            f"{path}: tensor {shown(head.name)} has shape {list(head.stored.shape)}, the base's is {wanted}; "
            "load it with its own base, without a vocabulary of its own"
        )
    return head
