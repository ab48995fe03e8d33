"""Quantizes the linears of a model with calibration text, layer by layer; no serving code imports it."""
