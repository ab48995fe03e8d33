"""Session records: the store, its Redis and in-memory implementations, and the calls on it."""
