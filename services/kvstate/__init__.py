"""The KV state service: what outlives a request, in Redis: session records, and which KV blocks there are."""
