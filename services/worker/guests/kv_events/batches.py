"""Reads batches of KV events as vLLM publishes them; SGLang sends the same.

A batch and its events are MessagePack arrays in older releases, and maps in newer ones. Fields are added at
the end, and unknown kinds of events are passed over, so a newer release is read as far as it says the same.
"""

from typing import Annotated, Any

import msgspec

BlockHash = bytes | int
MAX_BATCH_BYTES = 64 << 20


class BadBatch(ValueError):
    """A payload that is no batch of events."""


class StoredBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that follow on one another.

    Attributes:
        parent_block_hash: Of the block before the first; None: the first one begins a prompt.
        token_ids: Of all blocks, one after another.
        medium: Where they lie; None in releases that know only one place.
        extra_keys: What else is in the hash of each block: adapter, media, and the salt of a first block.
        group_idx: Which of the model's groups of layers; each has blocks and hashes of its own.
        kv_cache_spec_kind: What kind of layers these are.
        kv_cache_spec_sliding_window: Tokens that they see; None: all.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]]
    block_size: Annotated[int, msgspec.Meta(ge=1)]
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None

    def __post_init__(self) -> None:
        if len(self.token_ids) != self.block_size * len(self.block_hashes):
            raise ValueError("the number of tokens is not that of the blocks")


class RemovedBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that lost their content.

    Attributes:
        remaining_copy_counts: How many other blocks of the same content each has; None: that is not said.
    """

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None
    remaining_copy_counts: list[int] | None = None


class ClearedBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """All blocks lost their content."""


Event = StoredBlocks | RemovedBlocks | ClearedBlocks
_KINDS: dict[str, type[Event]] = {
    "BlockStored": StoredBlocks,
    "BlockRemoved": RemovedBlocks,
    "AllBlocksCleared": ClearedBlocks,
}


def decode_batch(payload: bytes) -> list[Event]:
    """Returns the events of a batch, in order.

    Raises:
        BadBatch: It is none.
    """
    if len(payload) > MAX_BATCH_BYTES:
        raise BadBatch(f"a batch of {len(payload)} bytes")
    try:
        batch = msgspec.msgpack.decode(payload)
        events = batch["events"] if isinstance(batch, dict) else batch[1]
        return [event for raw in events if (event := _event(raw)) is not None]
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        raise BadBatch(f"{type(error).__name__}: {error}") from error


def _event(raw: Any) -> Event | None:
    if isinstance(raw, dict):
        kind = _KINDS.get(raw["type"])
        return None if kind is None else msgspec.convert(raw, kind, builtin_types=(bytes,))
    kind = _KINDS.get(raw[0])
    if kind is None:
        return None
    fields = dict(zip(kind.__struct_fields__, raw[1:], strict=False))
    return msgspec.convert(fields, kind, builtin_types=(bytes,))
