"""HTTP: reading requests, routes, and writing responses."""
