"""The register of adapters: the contract of its store, the store on Redis, and the calls."""
