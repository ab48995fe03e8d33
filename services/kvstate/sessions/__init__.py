"""Session records: the store's contract, its implementation on Redis, and the calls."""
