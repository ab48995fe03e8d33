"""The serving path under a fixed number of requests in flight."""
