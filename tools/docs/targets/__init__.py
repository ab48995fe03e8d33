"""docs/targets.md: each requirement, its target, what was measured, and by how much it is missed."""
