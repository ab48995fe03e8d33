"""What services agree on about guests, the engines of others behind groups."""
