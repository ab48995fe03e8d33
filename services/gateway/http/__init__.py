"""One HTTP exchange: headers, keys, limits, errors, and writing the response."""
