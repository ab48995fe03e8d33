"""The models that one stack serves: declared by a file or by options, found, checked, and settled."""
