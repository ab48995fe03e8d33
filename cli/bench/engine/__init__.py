"""The commands that measure the engine: how fast it decodes, freely and under grammars."""
