"""vLLM as a guest: a process of vLLM's own environment beside the leader."""
