"""The subjects of JetStream's API that a user needs for streams of its own."""

API = "$JS.API"
STREAM_CALLS = ("CREATE", "UPDATE", "INFO", "PURGE", "MSG.GET")
CONSUMER_CALLS = ("DURABLE.CREATE.{}.*", "DELETE.{}.*", "INFO.{}.*", "MSG.NEXT.{}.*")


def stream_subjects(stream: str, *, work: bool = False) -> tuple[str, ...]:
    """Returns what a user must be allowed to publish to in order to use a stream.

    Args:
        work: It takes work out of it as well.
    """
    calls = (f"{API}.STREAM.{call}.{stream}" for call in STREAM_CALLS)
    consumers = (f"{API}.CONSUMER.{call.format(stream)}" for call in CONSUMER_CALLS) if work else ()
    acks = (f"$JS.ACK.{stream}.>",) if work else ()
    return (*calls, f"{API}.DIRECT.GET.{stream}", *consumers, *acks)
