"""What is measured of ranks and requests, and the names under which boards find it."""
