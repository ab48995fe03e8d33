"""Random schemas of nested objects, arrays, unions and scalars, with instances made along with them.

A schema and a function that draws fitting instances are built together. Instances that do not fit are fitting
ones with one change, as far as the `jsonschema` package refuses them.
"""

import copy
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from tests.kits.schemas.schema_case import SchemaCase, validator

Draw = Callable[[random.Random], Any]
Made = tuple[dict[str, Any], Draw]
_WORDS = (
    "id",
    "name",
    "size",
    "tags",
    "price",
    "owner",
    "street",
    "zip code",
    "größe",
    "is_open",
    "notes",
    "kind",
)
_TEXTS = (
    "",
    "a",
    "Oslo",
    "two words",
    "naïve",
    'a "quote"',
    "tab\tend",
    "日本",
    "back\\slash",
    "line\nbreak",
)
_WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**6,
    0.125,
    "?",
    "a longer text than most",
    [],
    [None],
    {},
    {"?": 1},
)
MAX_DEPTH = 4
NUM_INSTANCES = 6


def random_case(seed: int) -> SchemaCase:
    """Returns the case of a seed."""
    chance = random.Random(seed)
    make = chance.choice((_object, _object, _array, _union))
    schema, draw = make(chance, 0)
    if chance.random() < 0.3:
        schema = {"$defs": {"whole": schema}, "$ref": "#/$defs/whole"}
    judge = validator(schema)
    valid = [draw(chance) for _ in range(NUM_INSTANCES)]
    spoilt = (one for _ in range(10) for instance in valid for one in _spoilt(chance, instance))
    invalid = islice((one for one in spoilt if not judge.is_valid(one)), NUM_INSTANCES)
    return SchemaCase(f"random-{seed}", schema, tuple(valid), tuple(invalid))


def _any(chance: random.Random, depth: int) -> Made:
    if depth >= MAX_DEPTH or chance.random() < 0.5:
        return chance.choice((_string, _integer, _number, _enum, _plain))(chance)
    return chance.choice((_object, _array, _tuple, _union))(chance, depth)


def _plain(chance: random.Random) -> Made:
    return chance.choice((
        ({"type": "boolean"}, lambda draw: draw.random() < 0.5),
        ({"type": "null"}, lambda draw: None),
        ({"type": ["string", "null"]}, lambda draw: draw.choice((None, *_TEXTS))),
        ({"type": "string"}, lambda draw: draw.choice(_TEXTS)),
    ))  # fmt: skip


def _string(chance: random.Random) -> Made:
    shape = chance.randrange(3)
    least, most = chance.randrange(4), chance.randrange(4, 12)
    if shape == 0:
        letters = "abcéß 12"
        return {"type": "string", "minLength": least, "maxLength": most}, lambda draw: "".join(
            draw.choices(letters, k=draw.randint(least, most))
        )
    if shape == 1:
        return {"type": "string", "pattern": f"^[A-F0-9]{{{least},{most}}}$"}, lambda draw: "".join(
            draw.choices("ABCDEF0123456789", k=draw.randint(least, most))
        )
    return {
        "type": "string",
        "format": "date",
    }, lambda draw: f"20{draw.randint(10, 30)}-0{draw.randint(1, 9)}-1{draw.randint(0, 9)}"


def _integer(chance: random.Random) -> Made:
    least = chance.randint(-1000, 1000)
    most = least + chance.randint(0, 5000)
    return {"type": "integer", "minimum": least, "maximum": most}, lambda draw: draw.randint(least, most)


def _number(chance: random.Random) -> Made:
    least, width = chance.randint(-100, 100) / 4, chance.randint(1, 400)
    schema = {"type": "number", "minimum": least, "maximum": least + width / 4}
    return schema, lambda draw: least + draw.randint(0, width) / 4


def _enum(chance: random.Random) -> Made:
    values: list[Any] = chance.sample((*_WORDS, 1, 22, None, False), chance.randint(1, 6))
    return {"enum": values}, lambda draw: draw.choice(values)


def _object(chance: random.Random, depth: int) -> Made:
    names = chance.sample(_WORDS, chance.randint(1, 5))
    members = {name: _any(chance, depth + 1) for name in names}
    required = [name for name in names if chance.random() < 0.6]
    more = chance.choice((False, False, False, True, {"type": "integer"}))
    schema = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in members.items()},
        "required": required,
        "additionalProperties": more,
    }

    def draw_object(draw: random.Random) -> dict[str, Any]:
        drawn = {
            name: one(draw) for name, (_, one) in members.items() if name in required or draw.random() < 0.5
        }
        return drawn | ({"extra": draw.randint(0, 99)} if more is not False and draw.random() < 0.5 else {})

    return schema, draw_object


def _array(chance: random.Random, depth: int) -> Made:
    items, one = _any(chance, depth + 1)
    least, most = chance.randint(0, 2), chance.randint(2, 5)
    schema = {"type": "array", "items": items, "minItems": least, "maxItems": most}
    return schema, lambda draw: [one(draw) for _ in range(draw.randint(least, most))]


def _tuple(chance: random.Random, depth: int) -> Made:
    parts = [_any(chance, depth + 1) for _ in range(chance.randint(1, 3))]
    schema = {
        "type": "array",
        "prefixItems": [part for part, _ in parts],
        "items": False,
        "minItems": len(parts),
    }
    return schema, lambda draw: [one(draw) for _, one in parts]


def _union(chance: random.Random, depth: int) -> Made:
    parts = [_any(chance, depth + 1) for _ in range(chance.randint(2, 3))]
    return {"anyOf": [part for part, _ in parts]}, lambda draw: draw.choice(parts)[1](draw)


def _spoilt(chance: random.Random, instance: Any) -> Iterator[Any]:
    """Yields the instance with a changed, a missing and an additional part somewhere."""
    yield chance.choice(_WRONG)
    whole = {"root": copy.deepcopy(instance)}
    spots = list(_spots(whole))
    holder, key = chance.choice(spots)
    yield _changed(whole, holder, key, chance.choice(_WRONG))
    inner = [position for position in spots if position[0] is not whole]
    if inner:
        holder, key = chance.choice(inner)
        removed = copy.deepcopy(holder[key])
        del holder[key]
        yield copy.deepcopy(whole["root"])
        if isinstance(holder, dict):
            holder[f"{key}?"] = removed
            yield copy.deepcopy(whole["root"])


def _changed(whole: dict[str, Any], holder: Any, key: Any, value: Any) -> Any:
    before, holder[key] = holder[key], value
    spoilt = copy.deepcopy(whole["root"])
    holder[key] = before
    return spoilt


def _spots(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every container and key within."""
    keys = holder.keys() if isinstance(holder, dict) else range(len(holder))
    for key in list(keys):
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _spots(holder[key])
