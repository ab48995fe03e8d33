"""`ryz models`: the catalogue, the models directory, and what fetches, shows, removes and converts models."""
