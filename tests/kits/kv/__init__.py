"""Groups that share KV blocks."""
