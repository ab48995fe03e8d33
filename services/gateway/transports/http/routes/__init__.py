"""The routes of HTTP, by what they serve."""
