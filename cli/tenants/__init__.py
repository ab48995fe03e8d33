"""`ryz tenants`: tenants, their limits, their usage and their data."""
