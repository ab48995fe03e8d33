"""Makes the distribution `ryzanstein-client` of the modules in `shared/` that `InferenceClient` needs."""
