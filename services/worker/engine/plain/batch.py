"""The inputs of a forward pass: index tensors, and the keys that each token attends to.

All tensors are made once per step (`batch_builder.py`) and used by every layer.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from services.worker.engine.plain.placement import Placement
from services.worker.engine.rank.sequences import Ints
from services.worker.rank_protocol.page_policy import PagePolicy


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decodes that are attended together: tokens `begin` to `end` of the batch, one of each sequence.

    Attributes:
        begin: First token.
        end: Token after the last.
        length: Keys of the longest sequence, in tokens, the new token included.
        blocks: [sequences * blocks a sequence], from the first that the window reaches.
        mask: Added to scores, or if boolean the keys that are seen, [sequences, 1, 1, length]; None if all
            are.
        newest: Which of its keys is the sequence's new token, [sequences].
        window: The mask leaves so many keys up to the newest one, or 0: all of them. None: other ones.
    """

    begin: int
    end: int
    length: int
    blocks: Tensor
    mask: Tensor | None
    newest: Tensor
    window: int | None


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """A chunk of one sequence: tokens `begin` to `end` of the batch.

    Attributes:
        begin: First token.
        end: Token after the last.
        length: Keys, in tokens, the chunk's own included.
        blocks: From the first that the window reaches to the chunk's last; None if the chunk begins its
            sequence.
        mask: Added to scores, [tokens of the chunk, length]; None for a causal mask, in which the last token
            sees all keys.
    """

    begin: int
    end: int
    length: int
    blocks: Tensor | None
    mask: Tensor | None


class ReadRange(NamedTuple):
    """How far back the layers of a model read.

    Attributes:
        windows: Of its layers; 0: no window.
        pages: Which pages a token reads in layers without a window; None: all.
        masks_later_chunks: A chunk that continues its prompt gets a mask even where it is causal. On GPUs
            there is a kernel for those, and a mask would be made on the CPU.
    """

    windows: Collection[int] = (0,)
    pages: PagePolicy | None = None
    masks_later_chunks: bool = True

    def pages_of(self, window: int) -> PagePolicy | None:
        """The policy of layers with that window."""
        return None if window else self.pages


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The keys that the tokens of a batch attend to, in layers of one window."""

    decodes: list[DecodeGroup]
    prefills: list[PrefillChunk]


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """Inputs of one forward pass.

    Attributes:
        token_ids: [tokens].
        positions: [tokens].
        slots: Of the cache, [tokens].
        sample_rows: Tokens whose logits are computed, in the order of the plan's sampling chunks.
        attention_metadata: By the windows of the model's layers (0: no window).
        prompt_rows: Tokens whose rows prompts want (`SequenceState.prompt_rows`), in the order of the chunks.
        sliding_slots: Of the layers with a sliding window, where these have a pool of their own.
        adapters: The slot of each token's adapter, or `NO_ADAPTER`; None: all are of the base.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    sample_rows: Tensor
    attention_metadata: dict[int, AttentionMetadata]
    prompt_rows: Tensor | None = None
    sliding_slots: Tensor | None = None
    adapters: Ints | None = None

    def slots_of(self, window: int) -> Tensor:
        """The slots in layers of that window."""
        return self.sliding_slots if window and self.sliding_slots is not None else self.slots

    def to(self, placement: Placement) -> "PlainBatch":
        """Copies the batch to a device, with masks of the type of the scores there."""
        device = placement.device

        def move(metadata: AttentionMetadata) -> AttentionMetadata:
            return AttentionMetadata(
                [
                    replace(
                        d,
                        blocks=d.blocks.to(device),
                        mask=placement.move_optional(d.mask),
                        newest=d.newest.to(device),
                    )
                    for d in metadata.decodes
                ],
                [
                    replace(
                        p,
                        blocks=None if p.blocks is None else p.blocks.to(device),
                        mask=placement.move_optional(p.mask),
                    )
                    for p in metadata.prefills
                ],
            )

        return PlainBatch(
            token_ids=self.token_ids.to(device),
            positions=self.positions.to(device),
            slots=self.slots.to(device),
            sample_rows=self.sample_rows.to(device),
            attention_metadata={
                window: move(metadata) for window, metadata in self.attention_metadata.items()
            },
            prompt_rows=None if self.prompt_rows is None else self.prompt_rows.to(device),
            sliding_slots=None if self.sliding_slots is None else self.sliding_slots.to(device),
            adapters=self.adapters,
        )
