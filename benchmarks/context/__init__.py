"""Long contexts: time, perplexity and memory, exact and with settings that read less."""
