"""What can be wrong with an answer of a remote server."""


class ServerError(Exception):
    """An answer that cannot be used; the text is one sentence, without the key.

    Attributes:
        gone: No connection could be made.
        lost: The connection ended, or stalled, in the middle of an answer; the server may be gone.
        status: Of the HTTP answer, if it is the reason; else 0.
    """

    def __init__(self, reason: str, *, gone: bool = False, lost: bool = False, status: int = 0) -> None:
        super().__init__(reason)
        self.gone = gone
        self.lost = lost
        self.status = status
