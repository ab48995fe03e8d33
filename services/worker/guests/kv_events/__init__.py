"""KV events of engines of others, as the KV contents of a group."""
