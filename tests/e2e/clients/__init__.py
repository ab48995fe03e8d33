"""Client libraries against a stack."""
