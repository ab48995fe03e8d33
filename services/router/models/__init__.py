"""Models that hosts load and put to sleep: reports of hosts, the controller's lease, and its commands."""
