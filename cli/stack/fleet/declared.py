"""What a models file or options declare, and the problems in it, each with the line where it is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli.console import fail
from cli.stack.fleet.entry import ModelEntry
from cli.stack.fleet.toml_lines import Place, line_of


@dataclass(slots=True)
class Declaration:
    """The entries of one start. Problems are collected, so that all are shown at once.

    Attributes:
        file: The models file; None: the entries come from options.
        lines: Of its tables and keys.
        entries: By their numbers in the file; an entry with a problem may be missing.
        labels: How problems call the entries.
    """

    file: Path | None = None
    lines: Mapping[Place, int] = field(default_factory=dict)
    entries: dict[int, ModelEntry] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    _problems: dict[str, int] = field(default_factory=dict)  # lines of their texts
    _exit_code: int = 0

    def add_problem(self, place: Place, text: str, exit_code: int = 2) -> None:
        """Note a problem.

        Args:
            place: The path in the file, such as `("models", 0, "source")`.
            exit_code: The command ends with the highest code of all problems.
        """
        self._exit_code = max(exit_code, self._exit_code)
        index = place[1] if len(place) > 1 else None
        label = self.labels.get(index, "") if isinstance(index, int) else ""
        if self.file is None:
            self._problems[f"{label}: {text}" if label and len(self.labels) > 1 else text] = 0
            return
        line = line_of(place, self.lines)
        self._problems[f"{self.file}:{line}: {f'{label}: ' if label else ''}{text}"] = line

    def add_entry_problem(self, index: int, name: str, text: str, exit_code: int = 2) -> None:
        """Note a problem of one field of an entry."""
        self.add_problem(("models", index, name), text, exit_code)

    @property
    def is_open(self) -> bool:
        """Whether no model was named."""
        return self.file is None and not any(entry.source for entry in self.entries.values())

    @property
    def has_problems(self) -> bool:
        """Whether anything was noted."""
        return bool(self._problems)

    def refuse_problems(self) -> None:
        """Fail with all problems, in the order of the file, if there are any."""
        if not self._problems:
            return
        texts = sorted(self._problems, key=lambda text: self._problems[text])
        ends = [text if text.endswith((".", "?")) else f"{text}." for text in texts]
        count = f"The models file has {len(ends)} mistakes:\n" if self.file and len(ends) > 1 else ""
        fail(count + "\n".join(ends), self._exit_code)

    def check_names(self) -> None:
        """Note names and aliases that are there twice: a request must mean one model."""
        names = dict[str, int]()
        for index, entry in self.entries.items():
            if entry.name in names:
                other = self._line_words(names[entry.name], "name")
                remedy = (
                    "change one `name`" if self.file else "in a models file (`--models`) each has a `name`"
                )
                self.add_entry_problem(
                    index, "name", f"the name {entry.name!r} is that of another model{other}: {remedy}"
                )
            names.setdefault(entry.name, index)
        for index, alias, problem in self._alias_problems(names):
            self.add_entry_problem(index, "aliases", f"the alias {alias!r} {problem}")
        taken = names.keys() | {alias for entry in self.entries.values() for alias in entry.aliases}
        for index, entry in self.entries.items():
            for adapter in entry.adapters:
                if (full := f"{entry.name}:{adapter.name}") in taken:
                    text = f"the adapter {full!r} has the name of a model or an alias: change one"
                    self.add_entry_problem(index, "adapters", text)

    def _alias_problems(self, names: Mapping[str, int]) -> Iterator[tuple[int, str, str]]:
        taken = dict[str, int]()
        for index, entry in self.entries.items():
            for alias in entry.aliases:
                if alias == entry.name:
                    yield index, alias, "is the model's own name: remove it"
                elif alias in names:
                    other = self._line_words(names[alias], "name")
                    yield index, alias, f"is the name of another model{other}: remove it, or change that name"
                elif alias in taken:
                    other = self._line_words(taken[alias], "aliases")
                    yield index, alias, f"is one of {self.labels[taken[alias]]!r} already{other}: remove one"
                elif "," in entry.name:
                    yield index, alias, f"needs a model's name without a comma, not {entry.name!r}"
                taken.setdefault(alias, index)

    def _line_words(self, index: int, name: str) -> str:
        return f" (line {line_of(('models', index, name), self.lines)})" if self.file else ""
