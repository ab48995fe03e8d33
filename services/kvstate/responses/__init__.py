"""Records of the Responses API: the store's contract, its implementation on Redis, and the calls."""
