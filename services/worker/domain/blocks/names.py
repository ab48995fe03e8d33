"""Names the full blocks of sequences by their content; sequences share blocks of the same name.

Names are chains of content hashes (`shared/kv_hash.py`); the adapter is in their root, and the tenant unless
all tenants share. Without names nothing is shared: that is how the prefix cache is switched off.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.plan import BLOCK_SIZE
from shared import kv_hash

PrefixSharing = Literal["tenant", "all", "off"]


@dataclass(slots=True, frozen=True)
class BlockNames:
    """Names blocks for one engine.

    Attributes:
        sharing: `tenant` keeps tenants apart, `all` does not, `off` names nothing.
    """

    fingerprint: str
    kv_format: str = "fp32"
    sharing: PrefixSharing = "tenant"

    def of(self, sequence: Sequence) -> list[bytes]:
        """Returns the names of all blocks that the sequence's known tokens fill; kept in the sequence."""
        names, tokens = sequence.block_names, sequence.tokens
        full = len(tokens) // BLOCK_SIZE
        if len(names) == full or self.sharing == "off":
            return names
        if not names and sequence.first is not None:
            names += self.of(sequence.first)[: sequence.prompt_len // BLOCK_SIZE]
        begin = len(names) * BLOCK_SIZE
        adapter = "" if sequence.adapter is None else sequence.adapter.fingerprint
        parent = names[-1] if names else self._root(sequence.tenant, adapter)
        for start in range(begin, full * BLOCK_SIZE, BLOCK_SIZE):
            parent = kv_hash.extend(parent, tokens[start : start + BLOCK_SIZE])
            names.append(parent)
        return names

    def to_find(self, sequence: Sequence) -> list[bytes]:
        """Returns the names of the blocks that a sequence may find computed."""
        return [] if sequence.computes_all else self.of(sequence)

    def of_tokens(self, tokens: list[int], tenant: str, adapter: str = "") -> list[bytes]:
        """Returns the names of all blocks that a tenant's tokens fill; `adapter`: its fingerprint."""
        names: list[bytes] = []
        if self.sharing == "off":
            return names
        parent = self._root(tenant, adapter)
        for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
            parent = kv_hash.extend(parent, tokens[end - BLOCK_SIZE : end])
            names.append(parent)
        return names

    def of_packed(self, token_ids: bytes, tenant: str, adapter: str = "") -> Iterator[bytes]:
        """Yields the names of all blocks that a tenant's packed tokens fill; `adapter`: its fingerprint."""
        if self.sharing == "off":
            return
        name = self._root(tenant, adapter)
        for end in range(kv_hash.BLOCK_BYTES, len(token_ids) + 1, kv_hash.BLOCK_BYTES):
            name = kv_hash.extend_packed(name, token_ids[end - kv_hash.BLOCK_BYTES : end])
            yield name

    def _root(self, tenant: str, adapter: str) -> bytes:
        weights = kv_hash.weights_fingerprint(self.fingerprint, adapter)
        return kv_hash.root(weights, self.kv_format, tenant if self.sharing == "tenant" else "")


UNNAMED = BlockNames("", sharing="off")
