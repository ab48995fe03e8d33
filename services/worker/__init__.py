"""A worker group: one leader process, and the ranks that compute for it."""
