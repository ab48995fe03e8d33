"""KV blocks: moving them, writing them behind, fetching them for an overflowed turn, fp8 blocks."""
