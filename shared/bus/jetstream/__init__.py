"""JetStream over our bus: streams on the broker's disk, for what has to outlive every process."""
