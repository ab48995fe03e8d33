"""Which models run where, and which groups are started and stopped for them. Pure."""
