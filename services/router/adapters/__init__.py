"""The calls that load and unload adapters."""
