"""`/v1/sessions`: sessions as objects, and as files."""
