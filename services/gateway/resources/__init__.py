"""What tenants own and what outlives a call: sessions, files, batches, stored responses."""
