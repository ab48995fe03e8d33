"""Plans the worker groups of `compose.yaml` for its machine."""
