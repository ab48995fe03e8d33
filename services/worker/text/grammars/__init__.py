"""Grammars of answers, compiled with llguidance: which tokens may come next."""
