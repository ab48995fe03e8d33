"""What frames that wait for their reader weigh in memory. Pure."""

from shared.messages import Tokens

_FRAME = 256  # bytes of a frame and of each of its deltas, beside their content
_ENTRY = 160  # of a log probability: a token, its text, a number
_PER_CHARACTER = 2  # of text; between one byte, of plain English, and four


def weight_of(frame: Tokens) -> int:
    """About how many bytes of memory a frame takes."""
    weight = _FRAME
    for delta in frame.deltas:
        weight += _FRAME + _PER_CHARACTER * len(delta.text) + len(delta.token_ids)
        for entry in delta.logprobs:
            weight += _ENTRY * (1 + len(entry.top))
    return weight
