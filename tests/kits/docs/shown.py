"""Compares what a command printed with what its page shows."""

import re

# what differs from run to run, and stands in later commands: keys, ids of streams, files, batches, responses
IDS = re.compile(
    r"sk-ryz-[0-9a-z]{12}|\b(?:strm|file|batch|resp)[-_][0-9a-z_-]*[0-9a-z]{8,}|\br-[0-9a-f]{24}"
)
# what differs, and is not named again: dates, times of day, durations, sizes
VARYING = re.compile(
    r"\d{4}-\d\d-\d\dT?|\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?"
    r"|\d[\d,]*(?:\.\d+)? ?(?:ms|us|s|m|h|d|bytes|KiB|MiB|GiB|KB|MB|GB)\b"
)
GAP = "…"
_PARTS = re.compile(f"({IDS.pattern})|({VARYING.pattern})|({GAP})|(\\s+)")


def pattern_of(shown: str, names: dict[str, str]) -> "re.Pattern[str]":
    """Returns the pattern that a command's output has to match as a whole.

    Args:
        shown: What the page shows. `…` stands for any text, blanks and line ends for each other.
        names: Filled with the name of a group for each id that is shown.
    """
    parts, end = [], 0
    for match in _PARTS.finditer(shown.strip()):
        parts.append(re.escape(shown.strip()[end : match.start()]))
        end = match.end()
        text, varying, gap, _ = match.groups()
        if text is None:
            parts.append(VARYING.pattern.join(("(?:", ")")) if varying else ".*?" if gap else r"\s+")
        elif text in names:
            parts.append(f"(?P={names[text]})")
        else:
            names[text] = f"id{len(names)}"
            parts.append(f"(?P<{names[text]}>{IDS.pattern})")
    parts.append(re.escape(shown.strip()[end:]))
    return re.compile("".join(parts), re.DOTALL)


class Page:
    """What a page's words stand for in this run: addresses, and ids that its commands have printed.

    Args:
        words: Text of the page, and what is used in place of it.
    """

    def __init__(self, words: dict[str, str]) -> None:
        self._words = dict(words)

    def real(self, text: str) -> str:
        """Returns a command with the words of this run."""
        for shown, real in self._words.items():
            text = text.replace(shown, real)
        return text

    def compare(self, shown: str, printed: str) -> bool:
        """Returns whether a command printed what the page shows, and learns the ids in it."""
        for word, real in self._words.items():
            printed = printed.replace(real, word)
        names: dict[str, str] = {}
        match = pattern_of(shown, names).fullmatch(printed.strip())
        if match is None:
            return False
        self._words |= {text: match[name] for text, name in names.items() if text != match[name]}
        return True
