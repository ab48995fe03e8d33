"""Files of tenants: the routes of `/v1/files`, and where the bytes are."""
