"""The draft model: its engine, and the rounds in which it guesses tokens."""
