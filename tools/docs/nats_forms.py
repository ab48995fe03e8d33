"""Lists the subjects for NATS clients in docs/compatibility.md, and the routes that they reach."""

from services.gateway.bus_calls.complete_calls import ROUTES
from shared import subjects

_MODEL = "<model>"


def nats_forms() -> str:
    """Return the section of the page."""
    rows = [
        (subjects.complete_all().replace("*", _MODEL), f"JSON with `{field}`: `POST {route}` in one reply")
        for field, route in ROUTES.items()
    ]
    rows += [
        (subjects.GENERATE_ALL.replace("*", _MODEL), "MessagePack: a stream of frames, resumed after losses"),
        (f"{subjects.PREFIX}.tokenize.{_MODEL}", "tokens of a text"),
        (f"{subjects.PREFIX}.detokenize.{_MODEL}", "text of tokens"),
        (subjects.MODELS, "the models on offer"),
        (subjects.SRV_ALL, "services, endpoints and counts, as `nats micro` asks; for operators only"),
    ]
    head = (
        "## NATS\n\nSubjects for callers ([client.md](client.md)). Services outside have them, but `$SRV`, "
        "below `ryz.v1.tenant.<tenant>.<user>`.\n\n| subject | what it does |\n| --- | --- |\n"
    )
    return head + "".join(f"| `{subject}` | {about} |\n" for subject, about in rows)
