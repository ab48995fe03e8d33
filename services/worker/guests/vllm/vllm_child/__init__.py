"""What runs in vLLM's environment, where nothing of ours can be imported: it knows vLLM, msgspec, itself."""
