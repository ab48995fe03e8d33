"""The rank processes of a group: starting, watching and ending them."""
