"""Ways in which a request ends without an answer or without the end of one."""


class ClientDisconnected(Exception):
    """The caller closed its connection before its request was complete."""


class StreamLeft(Exception):
    """The connection ends here and the stream goes on, to be resumed by its client."""
