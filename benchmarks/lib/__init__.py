"""Parts that benchmarks share: child processes, CPU meters, facts about the machine, stacks, streams."""
