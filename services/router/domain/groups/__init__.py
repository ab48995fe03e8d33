"""What a router knows of groups: heartbeats, what was sent since, losses, and the views that policies get."""
