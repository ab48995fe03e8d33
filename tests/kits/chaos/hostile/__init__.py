"""Requests whose content is made to harm: grammars, tools, template variables, and what else a body can say."""
