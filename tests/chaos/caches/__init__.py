"""KV caches that shrink and grow under load."""
