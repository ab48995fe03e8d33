"""Grammars of arguments that are not written as plain JSON: from JSON Schema to rules in Lark."""
