"""Messages about KV blocks: those in the store, and those in the memory of groups."""
