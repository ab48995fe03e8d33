"""The leader's session records: lookup, commit, and the order of turns."""
