"""Files and batches of the gateway, with a real broker."""
