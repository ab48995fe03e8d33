"""Adds the ops of a mixture of experts to a program: from a layer's input to this rank's partial sums."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.engine.native.experts.packed_experts import PackedExperts, StackedLinear
from services.worker.engine.native.experts.structs import (
    ExpertLinearOp,
    ExpertSlots,
    MixExpertsOp,
    RouteOp,
    SortRowsOp,
    TileExpertsOp,
)
from services.worker.engine.native.operands import (
    MAX_ROWS,
    Activation,
    InputKinds,
    PartialSums,
    address_of,
)
from services.worker.engine.native.packed_weights import buffer, padded
from services.worker.engine.native.program import Program
from services.worker.engine.native.structs.rows import LinearOutput


@dataclass(frozen=True, slots=True)
class SlotBuffers:
    """What the experts of a layer write down about a pass; layers of one shape share it.

    Attributes:
        slots: The addresses, for the ops.
        inputs: Tiles of the experts' inputs; its rows are not used.
        inner: Inner features of each slot, and their tiles.
        parts: Outputs of each slot, [slots, padded hidden].
        logits: Of the router, [MAX_ROWS, padded outputs].
    """

    slots: ExpertSlots
    memory: tuple[Tensor, ...]
    inputs: Activation
    inner: Activation
    parts: Tensor
    logits: Tensor

    @classmethod
    def allocate(cls, experts: PackedExperts, hidden: int, kinds: InputKinds) -> "SlotBuffers":
        """Buffers for a full pass."""
        config = experts.config
        count = MAX_ROWS * config.chosen
        integers = [buffer(size, dtype=torch.int32) for size in (count, count, count, count)]
        begins, active = (buffer(config.count + 1, dtype=torch.int32) for _ in range(2))
        choices, slots, rows, owners = integers
        shares = buffer(count)
        return cls(
            slots=ExpertSlots(
                experts=config.count,
                chosen=config.chosen,
                choices=choices.data_ptr(),
                shares=shares.data_ptr(),
                slots=slots.data_ptr(),
                begins=begins.data_ptr(),
                active=active.data_ptr(),
                rows=rows.data_ptr(),
                owners=owners.data_ptr(),
            ),
            memory=(*integers, begins, active, shares),
            inputs=Activation.allocate(hidden, kinds, count),
            inner=Activation.allocate(experts.up.first.columns, kinds, count),
            parts=buffer(count, padded(hidden)),
            logits=buffer(MAX_ROWS, padded(experts.router.columns)),
        )


class ExpertOps:
    """The experts of all layers, which share their buffers.

    Args:
        hidden: Features of a row.
        kinds: In which forms linears read their inputs.
    """

    def __init__(self, hidden: int, kinds: InputKinds) -> None:
        self._hidden, self._kinds = hidden, kinds
        self._buffers: dict[tuple[int, ...], SlotBuffers] = {}
        self._float_tiles: dict[int, Activation] = {}  # of each source of byte rows, for the router
        self._shared: Tensor | None = None

    def add(
        self,
        program: Program,
        experts: PackedExperts,
        *,
        source: Activation,
        sums: PartialSums,
        accumulate: bool,
        add_shared: Callable[[PartialSums], None] | None,
    ) -> None:
        """Adds the experts of one layer.

        Args:
            source: The layer's input, in tiles.
            sums: Where this rank's partial sums go.
            accumulate: They are added to what is there.
            add_shared: Adds the ops of the MLP that every row takes, which writes to the given output; None:
                there is none.
        """
        own = self._buffers_of(experts)
        self._add_router(program, experts, source, own)
        program.append(SortRowsOp(slots=own.slots), own)
        _add_tiles(program, own, source.rows, own.inputs)
        inner, parts = own.inner, own.parts
        _add_linear(program, own, own.inputs, experts.up, inner.rows)
        _add_tiles(program, own, inner.rows, inner, by_slot=True)
        _add_linear(program, own, inner, experts.down, parts)
        shared, gate = 0, 0
        if add_shared is not None:
            if self._shared is None:
                self._shared = buffer(MAX_ROWS, padded(self._hidden))
            add_shared(PartialSums.local(self._shared))
            shared = self._shared.data_ptr()
            if experts.config.shared_gate:
                gate = own.logits[:, experts.config.count :].data_ptr()
        program.append(
            MixExpertsOp(
                accumulate=accumulate,
                slots=own.slots,
                parts=parts.data_ptr(),
                shared=shared,
                gate=gate,
                gate_stride=own.logits.shape[1],
                out=sums.own,
                width=parts.shape[1],
            ),
            own,
            self._shared,
            sums,
        )

    def _add_router(
        self, program: Program, experts: PackedExperts, source: Activation, own: SlotBuffers
    ) -> None:
        floats = source
        if source.floats is None:
            key = source.rows.data_ptr()
            if key not in self._float_tiles:
                self._float_tiles[key] = Activation(source.rows, floats=buffer(MAX_ROWS, source.width))
            floats = self._float_tiles[key]
            program.tile(floats)
        program.linear(floats, experts.router, own.logits.data_ptr(), own.logits.shape[1])
        program.append(
            RouteOp(
                rule=experts.rule,
                slots=own.slots,
                logits=own.logits.data_ptr(),
                stride=own.logits.shape[1],
            ),
            experts,
            own,
        )

    def _buffers_of(self, experts: PackedExperts) -> SlotBuffers:
        config = experts.config
        key = (config.count, config.chosen, experts.up.first.columns, experts.router.columns)
        if key not in self._buffers:
            self._buffers[key] = SlotBuffers.allocate(experts, self._hidden, self._kinds)
        return self._buffers[key]


def _add_tiles(
    program: Program, own: SlotBuffers, rows: Tensor, target: Activation, *, by_slot: bool = False
) -> None:
    program.append(
        TileExpertsOp(
            by_slot=by_slot,
            slots=own.slots,
            rows=rows.data_ptr(),
            width=rows.shape[1],
            tiled=target.tiled,
        ),
        own,
        rows,
        target,
    )


def _add_linear(
    program: Program, own: SlotBuffers, source: Activation, weights: StackedLinear, out: Tensor
) -> None:
    first = weights.first
    program.append(
        ExpertLinearOp(
            type=first.type,
            slots=own.slots,
            input=source.tiled,
            weights=weights.weights.data_ptr(),
            inputs=first.inputs,
            panels=first.panels,
            output=LinearOutput(
                y=out.data_ptr(),
                stride=out.shape[1],
                columns=first.columns,
                bias=address_of(weights.bias),
                rule=first.rule,
            ),
            form=first.form,
        ),
        own,
        weights,
        source,
        out,
    )
