"""Reading a checkpoint: config, tensor files, and the shard of each weight that a rank holds."""
