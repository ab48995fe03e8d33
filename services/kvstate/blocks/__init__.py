"""KV blocks: which are stored, for which sessions, within which quotas, and what is evicted."""
