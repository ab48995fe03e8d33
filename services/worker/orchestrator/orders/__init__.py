"""Orders that ranks follow beside steps, and their answers joined into one."""
