"""Grammars on real vocabularies, for tests."""
