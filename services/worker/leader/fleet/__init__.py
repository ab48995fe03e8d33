"""The group as a member of the fleet: its name, heartbeats, fencing and draining."""
