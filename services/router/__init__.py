"""The router: takes requests off the bus, chooses a group for each, and hands them on."""
