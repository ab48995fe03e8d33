"""Lets tests import compiled modules: `pytest -p tests.kits.compiled`, `make test-compiled`."""

from shared.compiled_modules import use_compiled_modules

assert use_compiled_modules(), "nothing is compiled, or sources were edited since: run `make compile`"
