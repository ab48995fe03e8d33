"""The ledger of usage, as leaders and gateways write it."""
