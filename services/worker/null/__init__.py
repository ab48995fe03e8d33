"""An engine without weights, for measurements of the serving path and for fast tests."""
