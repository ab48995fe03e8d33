"""How the ranks of a group combine their tensors. `base.py` has the contract, each backend a file."""
