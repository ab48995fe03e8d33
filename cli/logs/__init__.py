"""`ryz logs`: the lines of all services of a stack, merged by time."""
