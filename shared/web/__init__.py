"""The HTTP edge that all services share: limits of connections and headers, and who may ask from where."""
