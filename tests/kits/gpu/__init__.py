"""Stand-ins of what drivers of GPUs say."""
