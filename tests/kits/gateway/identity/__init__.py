"""Registers, identities and providers of tokens for tests of gateways."""
