"""Requests whose content is made to harm: grammars, tools, template variables, and all else in a body."""
