"""Parts of answers that the scripted leader behind a gateway sends."""

import json

from shared.messages import AnswerPart, ReasoningPart, TextPart, ToolCallPart

PARTS: tuple[AnswerPart, ...] = (
    ReasoningPart(text="Let me "),
    ReasoningPart(text="see."),
    TextPart(text="Loo"),
    TextPart(text="king."),
    ToolCallPart(index=0, call_id="call_a", name="weather", arguments='{"city":'),
    ToolCallPart(index=0, arguments='"Ulm"}'),
    ToolCallPart(index=1, call_id="call_b", name="time"),
    ToolCallPart(index=1, arguments="{}"),
)
PATCH = '*** Begin Patch\n+say "\u00e9"\n*** End Patch'
_ARGUMENTS = json.dumps({"input": PATCH})
CUSTOM_PARTS: tuple[AnswerPart, ...] = (
    ToolCallPart(index=0, call_id="call_p", name="patch"),
    *(ToolCallPart(index=0, arguments=_ARGUMENTS[at : at + 5]) for at in range(0, len(_ARGUMENTS), 5)),
    ToolCallPart(index=1, call_id="call_w", name="weather", arguments='{"city":"Ulm"}'),
)
