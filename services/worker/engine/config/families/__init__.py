"""One function for each family of models: what its config says that the layers compute."""
