"""The host tier of KV: segments in shared memory."""
