"""What the metadata of each GGUF architecture say, in the fields of a Hugging Face config."""
