"""`POST /v1/embeddings`: each input is a generation without tokens, which takes the ordinary way."""
