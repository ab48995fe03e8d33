"""One module for each transport: a request as data, and what sends it and writes down the answer."""
