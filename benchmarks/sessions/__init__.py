"""Many sessions on a real stack, one routing policy after the other."""
