"""Finds what `$ref` names, and gives each target one name.

References within the document are followed: pointers, anchors, and both behind the `$id` of the root.
"""

from typing import Any
from urllib.parse import unquote

from services.worker.text.grammars.json_schema.schema_fault import joined


class ReferenceTable:
    """The targets of a document's references.

    Args:
        document: The whole schema.
    """

    def __init__(self, document: Any) -> None:
        self._document = document
        root_id = document.get("$id") if isinstance(document, dict) else None
        self._root_id = root_id.rstrip("#") if isinstance(root_id, str) else ""
        self._anchors: dict[str, str] | None = None
        self._names: dict[str, str] = {}  # by pointer
        self.waiting: list[tuple[str, str, Any]] = []  # name, pointer and schema of targets not yet taken

    def local(self, reference: Any) -> str:
        """Returns the reference to `$defs` that stands for a reference.

        Raises:
            ValueError: It leaves the document, or nothing is there.
        """
        if not isinstance(reference, str):
            raise ValueError("needs a text")
        base, _, fragment = reference.partition("#")
        if base not in ("", self._root_id):
            raise ValueError(f"{reference[:80]!r} leaves the schema; references inside it begin with `#`")
        fragment = unquote(fragment)
        pointer = fragment if fragment.startswith("/") or not fragment else self._anchor(fragment)
        if pointer not in self._names:
            target = self._at(pointer)
            self._names[pointer] = f"r{len(self._names)}"
            self.waiting.append((self._names[pointer], pointer, target))
        return f"#/$defs/{self._names[pointer]}"

    def _at(self, pointer: str) -> Any:
        value = self._document
        for written in pointer.split("/")[1:]:
            step = written.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(step)] if isinstance(value, list) else value[step]
            except (KeyError, IndexError, ValueError, TypeError):
                raise ValueError(f"nothing is at {pointer[:80]!r}") from None
        return value

    def _anchor(self, name: str) -> str:
        if self._anchors is None:
            self._anchors = {}
            self._find_anchors(self._document, "")
        if name not in self._anchors:
            raise ValueError(f"no schema has the anchor {name[:80]!r}")
        return self._anchors[name]

    def _find_anchors(self, value: Any, pointer: str) -> None:
        assert self._anchors is not None
        if isinstance(value, dict):
            anchor = value.get("$anchor")
            if isinstance(anchor, str):
                self._anchors.setdefault(anchor, pointer)
            for key, item in value.items():
                if key not in ("const", "enum", "default", "examples"):
                    self._find_anchors(item, joined(pointer, key))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self._find_anchors(item, joined(pointer, index))
