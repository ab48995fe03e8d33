"""`ryz tenants`: tenants, their limits, prices and the audit log."""
