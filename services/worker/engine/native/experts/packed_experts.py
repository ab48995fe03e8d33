"""The weights of a mixture of experts, packed for the kernels: all experts of a layer in one buffer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix, Matrix, same_form
from services.worker.engine.checkpoint.layer_weights import ExpertsWeights
from services.worker.engine.config.layer import ExpertsConfig
from services.worker.engine.native.experts.structs import MAX_EXPERTS, RouterRule, Scoring
from services.worker.engine.native.library import KernelLibrary
from services.worker.engine.native.packed_weights import PackedLinear, buffer, pack, vector
from services.worker.engine.native.structs.rows import OutputRule
from services.worker.rank_protocol.run_config import Precision

_SCORING = {
    "softmax": Scoring.SOFTMAX,
    "sigmoid": Scoring.SIGMOID,
    "softmax_chosen": Scoring.SOFTMAX_CHOSEN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedLinear:
    """A weight matrix of each expert.

    Attributes:
        first: That of the first expert; its type, shape and rule are those of all.
        weights: The panels of all, [experts, bytes].
        bias: [experts, panels * outputs of a panel].
    """

    first: PackedLinear
    weights: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedExperts:
    """A mixture of experts.

    Attributes:
        router: fp32; the gate of the shared MLP, if there is one, is the output behind the experts'.
        selection_bias: [padded experts].
        up: With the gate, if there is one, and with the activation.
        down: The bias is that of rank 0 alone.
    """

    config: ExpertsConfig
    router: PackedLinear
    selection_bias: Tensor | None
    up: StackedLinear
    down: StackedLinear

    @property
    def rule(self) -> RouterRule:
        """How experts are chosen; `selection_bias` has to live as long."""
        config = self.config
        return RouterRule(
            scoring=_SCORING[config.scoring],
            normalize=config.normalize,
            groups=config.groups,
            chosen_groups=config.chosen_groups,
            group_best=1 if config.group_score == "max" else 2,
            scale=config.scale,
            selection_bias=0 if self.selection_bias is None else self.selection_bias.data_ptr(),
        )


def pack_experts(
    kernels: KernelLibrary,
    config: ExpertsConfig,
    weights: ExpertsWeights,
    rule: OutputRule,
    *,
    precision: Precision,
    first_rank: bool,
) -> PackedExperts:
    """Packs this rank's share of the experts; the shared MLP is packed as any other.

    Args:
        kernels: They define the panels.
        rule: What experts do between their two matrices.
        first_rank: The rank adds what is added once, the bias of `down`.
    """
    router, bias = weights.router.float(), weights.router_bias
    if weights.shared_gate is not None:
        router = torch.cat((router, weights.shared_gate.float()))
        bias = None if bias is None else torch.cat((bias, bias.new_zeros(1)))
    selection = weights.selection_bias
    return PackedExperts(
        config=config,
        router=pack(kernels, router, bias, precision="fp32"),
        selection_bias=None if selection is None else vector(selection),
        up=_stack(kernels, weights.gate_up, weights.gate_up_bias, rule, precision=precision),
        down=_stack(
            kernels,
            weights.down,
            weights.down_bias if first_rank else None,
            OutputRule(),
            precision=precision,
        ),
    )


def unsupported_experts(config: ExpertsConfig) -> str | None:
    """Why the kernels do not compute such experts, as the end of a sentence; None if they do."""
    if config.count > MAX_EXPERTS:
        return f"the kernels are for at most {MAX_EXPERTS} experts, not {config.count}"
    if config.expert.inner_norm is not None or (config.shared is not None and config.shared.inner_norm):
        return "the kernels compute no norms within experts"
    if config.shared is not None and config.shared.down_bias:
        return "the kernels compute no bias behind an MLP that is shared by all tokens"
    return None


def _stack(
    kernels: KernelLibrary,
    matrices: Tensor | list[Matrix],
    biases: Tensor | None,
    rule: OutputRule,
    *,
    precision: Precision,
) -> StackedLinear:
    """Packs [experts, outputs, inputs], one expert after another; codes of all are of one form."""
    if isinstance(matrices, list):
        matrices = list[Matrix](same_form([one for one in matrices if isinstance(one, EncodedMatrix)]))
    first: PackedLinear | None = None
    weights = bias = None
    for number, matrix in enumerate(matrices):
        one = pack(
            kernels, matrix, None if biases is None else biases[number], precision=precision, rule=rule
        )
        if weights is None:
            weights = buffer(len(matrices), one.num_bytes, dtype=torch.uint8)
            bias = None if one.bias is None else buffer(len(matrices), len(one.bias))
        weights[number] = one.weights
        if bias is not None and one.bias is not None:
            bias[number] = one.bias
        first = first or one
    assert first is not None
    assert weights is not None
    return StackedLinear(first=first, weights=weights, bias=bias)
