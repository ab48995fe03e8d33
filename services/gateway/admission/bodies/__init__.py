"""Bodies as they come: read within limits, and checked for the shape of their JSON."""
