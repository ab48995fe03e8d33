"""Streams of server-sent events: sending, ids, resumption, and streams whose client went away."""
