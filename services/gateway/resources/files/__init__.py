"""Files of tenants, and where their bytes are."""
