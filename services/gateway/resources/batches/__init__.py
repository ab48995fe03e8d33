"""Batches: files of requests that run when interactive requests leave room."""
