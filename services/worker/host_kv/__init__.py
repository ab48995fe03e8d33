"""The host tier of KV: blocks in shared memory that the groups of one host read from each other."""
