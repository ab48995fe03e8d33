"""Pages of lists, with the parameters that OpenAI's lists have. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.errors import InvalidRequest

MAX_PAGE = 100


def page_of(
    items: Sequence[dict[str, Any]],
    query: Mapping[str, Sequence[str]],
    *,
    newest_first: bool,
    default: int = 20,
    most: int = MAX_PAGE,
) -> dict[str, Any]:
    """A page of a list.

    Args:
        items: All objects, oldest first; each has an `id`.
        query: The parameters `limit`, `order` (`asc` or `desc`) and `after` (an id), each with its values.
        newest_first: The order if none is asked for.
        default: The length if none is asked for.
        most: The longest page.

    Raises:
        InvalidRequest: A parameter is wrong; names it.
    """
    limit = _last(query, "limit", str(default))
    order, after = _last(query, "order", "desc" if newest_first else "asc"), _last(query, "after", "")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 6 and 1 <= int(limit) <= most):
        raise InvalidRequest(f"`limit` is a number from 1 to {most}, got {limit[:32]!r}", param="limit")
    if order not in {"asc", "desc"}:
        raise InvalidRequest(f"`order` is 'asc' or 'desc', got {order[:32]!r}", param="order")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after:
        indices = [index for index, item in enumerate(ordered) if item["id"] == after]
        if not indices:
            raise InvalidRequest(f"`after` is the id of an item, got {after[:96]!r}", param="after")
        ordered = ordered[indices[0] + 1 :]
    page = ordered[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(ordered) > len(page),
    }


def _last(query: Mapping[str, Sequence[str]], name: str, default: str) -> str:
    values = query.get(name)
    return values[-1] if values else default
