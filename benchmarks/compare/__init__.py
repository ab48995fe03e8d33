"""Two result files of one benchmark, figure by figure."""
