"""The parts of a decoder layer in torch operators, on one rank."""
