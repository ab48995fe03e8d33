"""An engine without weights, chosen by name: it measures the serving path and lets tests run fast."""
