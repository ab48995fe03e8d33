"""Messages between leader and ranks: plans, results, KV transfers, joining, forking."""
