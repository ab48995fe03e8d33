"""KV blocks: which are free, whose they are, what they contain, and what of them is stored."""
