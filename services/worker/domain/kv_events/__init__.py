"""Pure: the numbered history of a KV cache, for routers of others."""
