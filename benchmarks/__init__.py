"""What `ryz bench` measures with: load, machine facts, stacks. The services know nothing of it."""
