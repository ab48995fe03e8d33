"""Server-sent events: ids, resumption, and streams whose client went away."""
