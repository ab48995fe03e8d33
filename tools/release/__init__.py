"""Makes what a release consists of, from its tag."""
