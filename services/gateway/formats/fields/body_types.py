"""What the models of bodies share: leniency about unknown fields, and errors that name a place."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PrivateAttr
from pydantic_core import PydanticCustomError

from services.gateway.admission.bodies.json_shape import MAX_FIELDS
from services.gateway.formats.fields.inner_fields import shape_of, unknown_in


def wrong(message: str, at: str = "") -> PydanticCustomError:
    """An error that `errors.py` reports at the field plus `at`."""
    escaped = message.replace("{", "(").replace("}", ")")  # braces would be fields of a template
    return PydanticCustomError("wrong", escaped, {"at": at})


def _few_fields(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        raise wrong(f"has {len(value)} fields and may have {MAX_FIELDS}")
    return value


_T = TypeVar("_T")
FewFields = Annotated[_T, BeforeValidator(_few_fields)]


class LenientBody(BaseModel):
    """A body, or a part of one, whose unknown fields are kept in `model_extra`.

    Texts below fields are their descriptions in the OpenAPI document.
    """

    model_config = ConfigDict(
        strict=True,
        extra="allow",
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )


class RequestBody(LenientBody):
    """A whole body, which also knows the names of unknown fields inside messages, tools and the like."""

    _inside: tuple[str, ...] = PrivateAttr(())

    @property
    def unknown_inside(self) -> Sequence[str]:
        """Places such as `messages[2].foo`; those at the top are in `model_extra`."""
        return self._inside

    def note_unknown(self, value: Any) -> None:
        """Finds the unknown fields inside; `value` is the body as it was sent, and is valid."""
        self._inside = unknown_in(value, shape_of(type(self)))
