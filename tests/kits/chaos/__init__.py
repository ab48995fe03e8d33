"""Stream readers, fault injection, mixed client load and fuzzers for the chaos tests."""
