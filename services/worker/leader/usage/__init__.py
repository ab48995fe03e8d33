"""What a leader writes to the ledger of usage."""
