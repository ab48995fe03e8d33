"""`ryz keys`: API keys of tenants and of admins."""
