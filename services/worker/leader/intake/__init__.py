"""The way of a request into the leader: admission, prompt tokens, sequences, the KV lookup."""
