"""Finds out at the start what a remote server is and can do."""
