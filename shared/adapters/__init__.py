"""What services keep in mind of adapters."""
