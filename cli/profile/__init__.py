"""`ryz profile`: leaders, ranks, ops, collectives and messages of some seconds in one file, on one clock."""
