"""Models whose KV caches share the memory of a host."""
