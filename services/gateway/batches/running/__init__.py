"""Running the requests of batches while groups have room."""
