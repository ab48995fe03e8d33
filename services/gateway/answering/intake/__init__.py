"""What is settled of a call before it runs: models, priorities, sessions, repeats."""
