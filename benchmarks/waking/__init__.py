"""How soon a model answers that is asleep."""
