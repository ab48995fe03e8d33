"""Tools for the gateway's pages: their vendored libraries and their pictures in the documentation."""
