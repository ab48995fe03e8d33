"""Files and batches without a broker."""
