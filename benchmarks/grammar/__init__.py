"""What grammars cost, and what forced tokens save."""
