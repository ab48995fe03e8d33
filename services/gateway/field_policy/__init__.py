"""One policy for all APIs: which fields and tools of a body are served, left out, or refused."""
