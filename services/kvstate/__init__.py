"""The KV state service: what outlives a request, in Redis. Today session records; blocks will join them."""
