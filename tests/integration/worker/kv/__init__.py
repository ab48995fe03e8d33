"""KV of worker groups: the store, the host tier, families, events."""
