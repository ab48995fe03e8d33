"""Tools for developers of this project; no service imports them."""
