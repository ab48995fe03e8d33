"""JSON schemas with instances that fit and instances that do not, to judge structured output."""
