"""Draft tokens: guesses of the next tokens of a sequence, which ranks check several at a time."""
