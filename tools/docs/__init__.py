"""Writes the generated pages and files; `--check` fails when one is out of date."""
