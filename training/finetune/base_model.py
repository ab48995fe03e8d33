"""Loads the base with transformers, and puts an adapter of PEFT on its linear layers."""

import hashlib
import inspect
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.finetune.errors import FinetuneError
from training.finetune.four_bit import GROUP, to_four_bits
from training.finetune.memory_estimate import ModelShape
from training.finetune.plan import FinetunePlan

_END = 2**20  # bytes at both ends of a file that its fingerprint is made of
_ROUTERS = ("gate", "router", "shared_expert_gate", "mlp_gate")
_MLP = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv")


def computes_bf16() -> bool:
    """Return whether the processor has instructions for products in bf16."""
    known = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(known)


def fingerprint(base: Path) -> str:
    """Return a hash of the model's config and of the ends of its weight files."""
    hashed = hashlib.sha256((base / "config.json").read_bytes())
    for path in sorted(base.glob("*.safetensors")):
        size = path.stat().st_size
        with path.open("rb") as file:
            hashed.update(f"{path.name} {size}".encode() + file.read(_END))
            file.seek(max(0, size - _END))
            hashed.update(file.read(_END))
    return hashed.hexdigest()


def read_shape(plan: FinetunePlan) -> tuple[ModelShape, list[str]]:
    """Read the sizes of a model from its config, without its weights.

    Returns:
        The sizes, and the names of the layers that get an adapter.

    Raises:
        FinetuneError: transformers does not know the model, or the layers are not there.
    """
    with torch.device("meta"):
        model = _make(plan.base, lambda auto, config: auto.from_config(config))
    names = adapted_layers(model, plan)
    frozen, linears = set(_linears(model)), dict(model.named_modules())
    linear = sum(linears[name].weight.numel() for name in frozen)
    every = sum(parameter.numel() for parameter in model.parameters())
    config = model.config.get_text_config()
    layers = int(config.num_hidden_layers)
    adapted = [(linears[name].in_features, linears[name].out_features) for name in names]
    widths = {name: linears[name].out_features for name in frozen}
    attention = (
        sum(width for name, width in widths.items() if name.rpartition(".")[2] in _ATTENTION) // layers
    )
    inner = (
        getattr(config, "intermediate_size", None)
        or getattr(config, "n_inner", None)
        or 4 * config.hidden_size
    )
    shape = ModelShape(
        linear=linear,
        other=every - linear,
        layers=layers,
        hidden=int(config.hidden_size),
        inner=int(inner),
        attention=attention or 3 * int(config.hidden_size),
        vocab=int(config.vocab_size),
        adapted=sum(inputs + outputs for inputs, outputs in adapted),
        adapted_inputs=sum(inputs for inputs, _ in adapted),
        all_logits=not takes_positions_of_logits(model),
    )
    return shape, names


def load_base(plan: FinetunePlan, *, bf16: bool) -> Any:
    """Load the base, frozen, in the plan's precision."""
    dtype = torch.float32 if plan.base_bits == 32 or not bf16 else torch.bfloat16
    with _quiet():
        model = _make(
            plan.base,
            lambda auto, _: auto.from_pretrained(
                plan.base,
                dtype=dtype,
                attn_implementation="sdpa",
                local_files_only=True,
                use_safetensors=True,
            ),
        )
    model.requires_grad_(False)
    model.config.use_cache = False
    if plan.base_bits == 4:
        modules = dict(model.named_modules())
        to_four_bits(model, [name for name in _linears(model) if modules[name].in_features % GROUP == 0])
    return model


def add_adapter(model: Any, plan: FinetunePlan, names: list[str]) -> Any:
    """Put a new adapter on the named layers; returns PEFT's model, which holds the base."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 (slow to import)

    config = LoraConfig(
        r=plan.rank,
        lora_alpha=int(plan.alpha) if plan.alpha == int(plan.alpha) else plan.alpha,
        lora_dropout=plan.dropout,
        target_modules=_shortest(model, names),
        bias="none",
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():  # PEFT asks transformers by names that this release calls old
        warnings.simplefilter("ignore", FutureWarning)
        adapted = get_peft_model(model, config)
    config.base_model_name_or_path = plan.base_name
    if plan.recompute:
        model.activation_checkpointing_enable()
    return adapted


def save_adapter(adapted: Any, state: dict[str, Tensor], directory: Path) -> None:
    """Write an ordinary PEFT directory; the file with the weights comes last and at once.

    Args:
        state: The trained weights by the names of `named_parameters`.
    """
    from peft.utils import get_peft_model_state_dict  # noqa: PLC0415 (slow to import)
    from safetensors.torch import save_file  # noqa: PLC0415

    adapted.peft_config["default"].inference_mode = True
    adapted.peft_config["default"].save_pretrained(str(directory))
    path = directory / "adapter_config.json"
    config = json.loads(path.read_text())
    config["target_modules"] = sorted(config["target_modules"])  # PEFT has them as a set
    path.write_text(json.dumps(config, indent=2) + "\n")
    known = get_peft_model_state_dict(adapted, state_dict=state, save_embedding_layers=False)
    draft = directory / ".adapter_model.safetensors.part"
    save_file({name: one.contiguous() for name, one in known.items()}, draft, metadata={"format": "pt"})
    draft.chmod(path.stat().st_mode & 0o777)  # the library makes a file for its owner alone
    draft.replace(directory / "adapter_model.safetensors")


def adapted_layers(model: nn.Module, plan: FinetunePlan) -> list[str]:
    """Return the layers that get an adapter: those that the plan names, else all linear ones of the decoder.

    In mixtures of experts these are the attention's.
    """
    linears = [name for name in _linears(model) if ".experts." not in name]
    kinds = {name.rpartition(".")[2] for name in linears}
    if unknown := [name for name in plan.targets if name not in kinds]:
        raise FinetuneError(
            f"`--targets`: the model has no linear layer {unknown[0]!r}; it has {', '.join(sorted(kinds))}"
        )
    has_experts = any(one.ndim == 3 for one in model.parameters())  # transformers stacks their weights
    # PEFT takes a name of the MLP's as one of experts' as well, and groups refuse adapters of experts
    wanted = set(plan.targets) or kinds.difference(_ROUTERS, _MLP if has_experts else ())
    names = [name for name in linears if name.rpartition(".")[2] in wanted]
    if not names:
        raise FinetuneError(f"{plan.base.name} has no linear layers that an adapter can be put on")
    return names


def takes_positions_of_logits(model: Any) -> bool:
    """Return whether the model computes logits of some positions only, when asked to."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def _linears(model: nn.Module) -> list[str]:
    """Return the names of all linear layers but the head."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    return [name for name, one in model.named_modules() if isinstance(one, nn.Linear) and one is not head]


def _shortest(model: nn.Module, names: list[str]) -> list[str]:
    """Return the last parts of names, if no other layers have them; else the names."""
    kinds = {name.rpartition(".")[2] for name in names}
    same = [name for name in _linears(model) if name.rpartition(".")[2] in kinds]
    return sorted(kinds) if len(same) == len(names) else names


def _make(base: Path, make: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    try:
        if "quantization_config" in json.loads((base / "config.json").read_text()):
            raise FinetuneError(
                f"{base} is quantized, and adapters are trained on float weights; give the model that it was "
                "made of"
            )
        return make(AutoModelForCausalLM, AutoConfig.from_pretrained(base, local_files_only=True))
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise FinetuneError(f"transformers cannot load {base}: {reason}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Switch off the progress bars of transformers, which has its own."""
    from transformers.utils import logging  # noqa: PLC0415 (slow to import)

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
