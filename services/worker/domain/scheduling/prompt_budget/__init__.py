"""How many tokens of prompts a step gets beside decodes, and which prompts get them."""
