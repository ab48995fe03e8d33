"""Stop strings over streamed text: what may be shown, and where a generation ends.

The outcome does not depend on how the text is cut into pieces: the occurrence that is complete first
counts, and the longer one of two that are complete at the same character. No character of it is shown.
"""

from collections.abc import Sequence


class StopMatcher:
    """Holds back text that may be the beginning of a stop string until it is clear that it is not."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._first_chars = frozenset(stop[0] for stop in stops)
        self._longest = max(map(len, stops))
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Takes new text; returns what may be shown now, and whether a stop string is complete.

        After True there is nothing more to show; call neither method again.
        """
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        held_from = self._possible_start(text)
        self._held = text[held_from:]
        return text[:held_from], False

    def flush(self) -> str:
        """The text held back, once it is certain that no more follows."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Where the longest ending of `text` begins that is the beginning of a stop string."""
        for index in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[index] in self._first_chars and self._begins_stop(text[index:]):
                return index
        return len(text)

    def _begins_stop(self, ending: str) -> bool:
        return any(stop.startswith(ending) for stop in self._stops)
