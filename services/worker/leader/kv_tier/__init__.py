"""The leader's side of the KV store: lookups, fetches, write-behind and block ownership."""
