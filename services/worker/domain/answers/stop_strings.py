"""Stop strings over streamed text: what may be shown, and where a generation ends.

The outcome does not depend on how the text is cut into pieces: the occurrence that is complete first
counts, and the longer one of two that are complete at the same character. No character of it is shown.

A character costs a few operations on whole numbers, however many stop strings there are and however much they
repeat themselves: the Shift-And algorithm (Baeza-Yates and Gonnet, "A new approach to text searching", 1992)
over all of them. Bit `index * number of strings + string` of the state says that the text ends with the first
`index + 1` characters of that string, so that the highest bit is that of the longest one.
"""

from collections.abc import Sequence

_KNOWN_CHARS = 256  # that are remembered; the masks of long stop strings have half a KiB


class StopStrings:
    """The stop strings of a request, for the matchers of all its choices."""

    __slots__ = ("ends", "first_chars", "masks", "ones", "texts", "width")

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        self.width = len(texts)
        self.masks = _Masks(texts)  # by character
        self.first_chars = frozenset(text[0] for text in texts)
        self.ones = (1 << self.width) - 1
        self.ends = sum(1 << (len(text) - 1) * self.width + number for number, text in enumerate(texts))


class _Masks(dict[str, int]):
    """The bits of the indices where a character occurs, made when it is seen for the first time."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__()
        self._texts = tuple(texts)

    def __missing__(self, char: str) -> int:
        mask, width = 0, len(self._texts)
        for number, text in enumerate(self._texts):
            position = text.find(char)
            while position >= 0:
                mask |= 1 << position * width + number
                position = text.find(char, position + 1)
        if len(self) == _KNOWN_CHARS:
            self.clear()
        self[char] = mask
        return mask


class StopMatcher:
    """Holds back text that may be the beginning of a stop string until it is clear that it is not.

    Attributes:
        matched: The stop string that is complete; empty before that.
    """

    __slots__ = ("_held", "_state", "_stops", "matched")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self.matched = ""
        self._held = ""
        self._state = 0  # 0: nothing is held

    def feed(self, text: str) -> tuple[str, bool]:
        """Takes new text; returns what may be shown now, and whether a stop string is complete.

        After True there is nothing more to show; call neither method again.
        """
        state, stops = self._state, self._stops
        if not state and stops.first_chars.isdisjoint(text):
            return text, False
        masks, width, ones, ends = stops.masks, stops.width, stops.ones, stops.ends
        for count, char in enumerate(text, 1):
            state = (state << width | ones) & masks[char]
            if found := state & ends:
                self.matched = stops.texts[(found.bit_length() - 1) % width]
                text, self._held = self._held + text[:count], ""
                return text[: len(text) - _longest(found, width)], True
        self._state = state
        text = self._held + text
        shown = len(text) - _longest(state, width)
        self._held = text[shown:]
        return text[:shown], False

    def flush(self) -> str:
        """The text held back, once it is certain that no more follows."""
        held, self._held, self._state = self._held, "", 0
        return held


def _longest(state: int, width: int) -> int:
    """Characters of the longest beginning of a stop string that the text ends with."""
    return (state.bit_length() + width - 1) // width
