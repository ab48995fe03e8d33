"""`ryz models convert`: GGUF files to Hugging Face directories and back, one tensor at a time."""
