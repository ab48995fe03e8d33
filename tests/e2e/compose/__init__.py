"""The stack in containers, from compose.yaml."""
