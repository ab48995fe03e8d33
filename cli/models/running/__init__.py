"""`ryz models status`, `load`, `wake`, `sleep`, `unload` and `scale`: the models of a running fleet."""
