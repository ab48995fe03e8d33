"""`/v1/sessions`, and what request headers say about a session."""
