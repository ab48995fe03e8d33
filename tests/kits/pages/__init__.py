"""Chromium, driven by Playwright, for tests of the gateway's pages."""
