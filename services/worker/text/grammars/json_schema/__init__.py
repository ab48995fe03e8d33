"""JSON Schemas: what of them llguidance enforces, rewritten so that it enforces it exactly."""
