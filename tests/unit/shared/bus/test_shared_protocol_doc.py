"""The protocol page is complete and up to date."""

from shared import subjects
from shared.errors import TABLE
from tests.contract.golden_messages import EXAMPLES
from tools.docs import protocol as protocol_doc


def test_the_file_is_what_the_messages_say() -> None:
    assert protocol_doc.DOC.read_text() == protocol_doc.render(), "run python -m tools.docs.protocol"


def test_it_names_every_message_subject_and_code() -> None:
    text = protocol_doc.render()
    for example in EXAMPLES:
        assert f"\n### {type(example).__name__}\n" in text
    for name, value in vars(subjects).items():
        if name.isupper() and isinstance(value, str) and value.startswith(f"{subjects.PREFIX}."):
            assert value.rstrip("*") in text, name
    for code in TABLE:
        assert f"| `{code}` |" in text


def test_bounds_and_meanings_come_from_the_types() -> None:
    text = protocol_doc.render()
    assert "| `top_p` | float or nil, > 0, <= 1 | nil |" in text
    assert "| `delivery` | string, one of `stream`, `whole` | `stream` | `stream` sends tokens" in text
    assert "unsigned 32-bit little-endian" in text
