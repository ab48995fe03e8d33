"""Rules of the KV state service, pure: records and their versions, key names, the circuit before Redis."""
