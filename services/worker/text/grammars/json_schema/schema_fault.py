"""What is wrong with a schema, and where."""


class SchemaFault(Exception):
    """A schema that is no schema, or asks for what is not enforced.

    Attributes:
        reason: What is wrong, without the keyword.
        keyword: The keyword at fault.
        pointer: JSON pointer to the schema that has it; empty for the root.
    """

    def __init__(self, reason: str, keyword: str, pointer: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.keyword = keyword
        self.pointer = pointer


def joined(pointer: str, *steps: str | int) -> str:
    """Returns a JSON pointer with further steps (RFC 6901)."""
    return pointer + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
