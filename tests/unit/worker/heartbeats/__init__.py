"""Tests of heartbeats of leaders."""
