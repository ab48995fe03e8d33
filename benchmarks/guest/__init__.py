"""What the path through a stack costs a server of others."""
