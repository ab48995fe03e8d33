"""The memory that a group has for adapters, unless a setting says otherwise."""

POOL_BYTES = 256 * 2**20
