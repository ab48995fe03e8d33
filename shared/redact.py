"""Takes passwords out of text that people will see."""

import re


def redact(text: str) -> str:
    """The text without users and passwords in URLs, for logs and messages."""
    return re.sub(r"//[^\s,]+@", "//***@", text)
