"""Several services as processes, between a single service and `ryz up`."""
