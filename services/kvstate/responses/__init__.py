"""Records of the Responses API: the store's contract, its two implementations, and the calls."""
