"""Makes the demo model: draws its data, trains tokenizer and weights, exports and measures them.

Nothing here serves requests; the engine reads the exported directory like any other model.
"""
