"""What is made of the reports of benches: comparisons, verdicts, percentiles."""
