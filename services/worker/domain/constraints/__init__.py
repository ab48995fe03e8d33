"""What grammars demand of the next tokens: forced tokens, and the masks of steps."""
