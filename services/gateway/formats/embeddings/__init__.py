"""Embeddings: each input is a generation without tokens, which passes the router as others do."""
