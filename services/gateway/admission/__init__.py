"""Who may call: keys, rates, places, bytes of bodies, and the guard against other sites' pages."""
