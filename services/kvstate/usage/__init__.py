"""What requests have used: the ledger that leaders write, and its sums."""
