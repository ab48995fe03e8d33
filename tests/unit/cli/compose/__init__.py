"""Models files as files for Docker Compose."""
