"""What the leader needs from outside: the model's files, tokenizer and template, and engines."""
