"""A call and its answer, without any transport: runs, repeats, resumption, detached streams, sessions' conditions."""
