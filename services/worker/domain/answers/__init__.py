"""From sampled tokens to the text and the typed parts of an answer: stop strings, parts, prompt outputs."""
