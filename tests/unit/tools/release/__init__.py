"""`make release`."""
