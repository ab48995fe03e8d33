"""Tests of the Responses API."""
