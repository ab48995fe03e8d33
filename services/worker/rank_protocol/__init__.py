"""What leader and ranks send each other: plans, results, KV transfers, joining, forking."""
