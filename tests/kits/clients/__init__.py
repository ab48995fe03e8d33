"""Tests of client libraries as classes that one test module collects, so that all share one stack."""
