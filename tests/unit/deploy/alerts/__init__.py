"""Unit tests of the alert rules, for promtool."""
