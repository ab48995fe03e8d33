"""What tests of guests share."""
