"""One small random model for each architecture, and all comparisons with transformers that are run on it."""
