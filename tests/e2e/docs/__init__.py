"""Commands of the pages against a stack."""
