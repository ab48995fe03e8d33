"""Publishes the changes of the group's KV cache to those that ask for them."""
