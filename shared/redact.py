"""Removes passwords from text for people."""

import re


def redact(text: str) -> str:
    """Returns the text without users and passwords in URLs, for logs and messages."""
    return re.sub(r"//[^\s,]+@", "//***@", text)
