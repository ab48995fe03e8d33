"""Streams that outlive their connection, and the tokens by which they are resumed."""
