"""The KV cache of vLLM as its events tell it, under this project's names of blocks. Pure.

vLLM's hashes mean nothing outside of it: they are seeded, of a kind that is a setting, and an index of
several engines needs one name for equal content. So a block is named anew, from its parent's name and its
tokens, as `shared/kv_hash.py` says, with blocks of vLLM's size. The token ids go no further than this.

What cannot be named is not claimed: blocks behind one that was stored before this began to listen, blocks
with media or prompt embeddings, and, if tenants are kept apart, prompts without a salt.
"""

from collections.abc import Callable, Sequence
from typing import Any

from services.worker.domain.blocks.changes import BlockChanges
from services.worker.domain.blocks.names import PrefixSharing
from services.worker.domain.kv_events.contents import KVNaming
from services.worker.guests.kv_events.batches import (
    BlockHash,
    ClearedBlocks,
    Event,
    RemovedBlocks,
    StoredBlocks,
)
from shared import codec, kv_hash

_GPU = (None, "", "GPU", "gpu")  # not what lies in a store behind the cache
_WHOLE = (None, "full_attention", "mla_attention")  # kinds of layers that keep all tokens
Key = tuple[int | None, BlockHash]


class VllmContents:
    """The cache of one vLLM engine; implements `KVContents`.

    Args:
        fingerprint: Names its weights; empty until they are known.
        kv_format: How it stores keys and values.
        sharing: `tenant` if requests are sent with their tenant as `cache_salt`, else `all`.
        adapters: The fingerprint of each adapter by vLLM's name for it.

    Attributes:
        num_unnamed: Blocks that were stored and could not be named.
    """

    def __init__(
        self,
        fingerprint: str = "",
        *,
        kv_format: str = "vllm",
        sharing: PrefixSharing = "tenant",
        adapters: Callable[[str], str] = str,
    ) -> None:
        self._fingerprint = fingerprint
        self._kv_format = kv_format
        self._sharing = sharing
        self._adapters = adapters
        self._block_size = kv_hash.BLOCK_TOKENS
        self._by_hash: dict[Key, bytes] = {}
        self._copies: dict[bytes, int] = {}  # hashes of each name
        self._changes: BlockChanges | None = None
        self._watchers: list[Callable[[], None]] = []
        self.num_unnamed = 0

    def naming(self) -> KVNaming:
        """Returns how its blocks are named."""
        return KVNaming(self._fingerprint, self._kv_format, self._sharing, self._block_size)

    def names(self) -> list[bytes]:
        """Returns the names of all blocks in it."""
        return list(self._copies)

    def num_names(self) -> int:
        """Returns how many these are."""
        return len(self._copies)

    def record(self, changes: BlockChanges | None) -> None:
        """Records in `changes` what comes and goes from now on; None ends it."""
        self._changes = changes

    def watch_resets(self, on_reset: Callable[[], None]) -> None:
        """Calls `on_reset` after `reset`."""
        self._watchers.append(on_reset)

    def reset(self) -> None:
        """Forgets all: the engine is another one, or it is not known what became of its cache."""
        self._by_hash.clear()
        self._copies.clear()
        self._changes = None
        for watcher in self._watchers:
            watcher()

    def begin(self, fingerprint: str, block_tokens: int) -> None:
        """Forgets all: an engine with these weights was started; empty: there is none."""
        self._fingerprint, self._block_size = fingerprint, block_tokens
        self.reset()

    def apply(self, events: Sequence[Event]) -> None:
        """Applies the events of a batch."""
        for event in events:
            if isinstance(event, StoredBlocks):
                self._store(event)
            elif isinstance(event, RemovedBlocks):
                self._remove(event)
            else:
                assert isinstance(event, ClearedBlocks)
                for key in list(self._by_hash):
                    self._drop(key)

    def _store(self, event: StoredBlocks) -> None:
        if event.medium not in _GPU or event.kv_cache_spec_kind not in _WHOLE:
            return
        if event.kv_cache_spec_sliding_window is not None:
            return
        self._block_size = event.block_size
        packed, size = codec.pack_tokens(event.token_ids), 4 * event.block_size
        parent: bytes | None = None
        if event.parent_block_hash is not None:
            parent = self._by_hash.get((event.group_idx, event.parent_block_hash))
            if parent is None:
                self.num_unnamed += len(event.block_hashes)
                return
        for index, block_hash in enumerate(event.block_hashes):
            rest = self._other_keys(event, index)
            if parent is None:
                parent = self._root(event, rest)
                rest = []
            if parent is None or rest:
                self.num_unnamed += len(event.block_hashes) - index
                return
            parent = kv_hash.extend_packed(parent, packed[index * size : (index + 1) * size])
            self._put((event.group_idx, block_hash), parent)

    def _root(self, event: StoredBlocks, keys: list[Any]) -> bytes | None:
        """Returns the parent of a first block, or None if it cannot be known."""
        adapter = self._adapters(event.lora_name) if event.lora_name else ""
        if event.lora_id is not None and not event.lora_name:
            return None  # a release that does not say which adapter it is
        weights = kv_hash.weights_fingerprint(self._fingerprint, adapter)
        if self._sharing == "all":
            return None if keys else kv_hash.root(weights, self._kv_format, "")
        if len(keys) != 1 or not isinstance(keys[0], str):
            return None
        return kv_hash.root(weights, self._kv_format, keys[0])

    def _other_keys(self, event: StoredBlocks, index: int) -> list[Any]:
        """Returns what is in the hash of a block beside its tokens and its adapter."""
        keys = list((event.extra_keys[index] if event.extra_keys else None) or ())
        if keys and event.lora_name and keys[0] == event.lora_name:
            del keys[0]
        return keys

    def _remove(self, event: RemovedBlocks) -> None:
        if event.medium not in _GPU:
            return
        left = event.remaining_copy_counts or []
        for index, block_hash in enumerate(event.block_hashes):
            # without a count there may be another copy; to claim too little costs less than too much
            if index >= len(left) or left[index] <= 0:
                self._drop((event.group_idx, block_hash))

    def _put(self, key: Key, name: bytes) -> None:
        known = self._by_hash.get(key)
        if known == name:
            return
        if known is not None:
            self._drop(key)
        self._by_hash[key] = name
        self._copies[name] = self._copies.get(name, 0) + 1
        if self._copies[name] == 1 and self._changes is not None:
            self._changes.note_stored(name)

    def _drop(self, key: Key) -> None:
        name = self._by_hash.pop(key, None)
        if name is None:
            return
        self._copies[name] -= 1
        if not self._copies[name]:
            del self._copies[name]
            if self._changes is not None:
                self._changes.note_removed(name)
