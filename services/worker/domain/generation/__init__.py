"""One request in the leader: choices, frames, stop strings, the session it continues. Pure."""
