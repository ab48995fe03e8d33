"""Why an engine did not start, in one line."""


class RefusedError(Exception):
    """Another start with these arguments would fail in the same way."""


def one_line(error: BaseException) -> str:
    """Return an error's text in one line, with its type if that says more."""
    text = " ".join(str(error).split()).partition(" [type=")[0]  # behind it pydantic shows its input
    return text if isinstance(error, RefusedError) else f"{type(error).__name__}: {text}"
