"""Which model of the catalogue fits a machine, and which commit of it was pulled first."""
