"""A Jinja environment that limits the time of a rendering and the size of its values.

A chat template is a program that comes with a model. The sandbox keeps it from the machine; here loops, calls
and operators check a deadline, and operators and calls refuse huge values. Filters that build one large
string from a number in the template itself are not limited.
"""

import re
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARS = 64 * 2**20  # of any intermediate string; the bus takes prompts of one MiB
MAX_ITEMS = 2**20  # of any intermediate list or tuple, which have eight bytes for each
MAX_NUMBER = 10**6  # as an argument of a call, or as a width
MAX_BITS = 10**5  # of a whole number
_WIDE = re.compile(r"\d{7,}|\*")


class TemplateOverran(Exception):
    """The template exceeded its time limit. No error of Jinja, so that a template cannot catch it."""


class TemplateTooLarge(jinja2.TemplateError):
    """The template builds a value that is too large."""


class _Deadline(threading.local):
    deadline = float("inf")  # in CPU time of this thread, so that a busy machine ends no rendering


class GuardedEnvironment(ImmutableSandboxedEnvironment):
    """Checks limits while a template runs; call `limit_time` before each rendering."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._clock = _Deadline()
        self.filters["_in_time"] = self._in_time

    def limit_time(self, limit_s: float) -> None:
        """End rendering in this thread after `limit_s` seconds of its CPU time, with `TemplateOverran`."""
        self._clock.deadline = time.thread_time() + limit_s

    def parse_guarded(self, source: str) -> nodes.Template:
        """Parse a template whose loops check the deadline, with `~` replaced by the checked `+`."""
        tree = self.parse(source)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_in_time", [], [], None, None, lineno=loop.lineno)
        guarded: nodes.Template = _ReplaceConcat().visit(tree)
        return guarded

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the deadline and the sizes around a call."""
        self.check_deadline()
        for value in (*args, *kwargs.values()):
            if isinstance(value, int) and abs(value) > MAX_NUMBER:
                raise TemplateTooLarge(f"the template calls something with the number {value}")
        return _small(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Check the deadline and the sizes around an operator."""
        self.check_deadline()
        if operator == "*" and (hasattr(left, "__len__") or hasattr(right, "__len__")):
            text, times = (left, right) if hasattr(left, "__len__") else (right, left)
            if isinstance(times, int) and len(text) * times > _most(text):
                raise TemplateTooLarge(f"the template repeats something {times} times")
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > MAX_BITS:
                raise TemplateTooLarge("the template computes a number that is too large")
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise TemplateTooLarge("the template formats with a width that is too large, or not known")
        return _small(super().call_binop(context, operator, left, right))

    def check_deadline(self) -> None:
        """Raise `TemplateOverran` after the deadline."""
        if time.thread_time() > self._clock.deadline:
            raise TemplateOverran

    def _in_time(self, values: Any) -> Any:
        return values if isinstance(values, jinja2.Undefined) else _TimedValues(values, self)


class _ReplaceConcat(jinja2.visitor.NodeTransformer):
    """Turns `a ~ b` into `a|string + b|string`."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        parts = [
            nodes.Filter(self.visit(part), "string", [], [], None, None, lineno=node.lineno)
            for part in node.nodes
        ]
        whole: nodes.Expr = parts[0]
        for part in parts[1:]:
            whole = nodes.Add(whole, part, lineno=node.lineno)
        return whole


class _TimedValues:
    """The values of a loop; each step checks the deadline. It has a length if the original has one."""

    def __init__(self, values: Iterable[Any], environment: GuardedEnvironment) -> None:
        self._values = values
        self._environment = environment

    def __len__(self) -> int:
        return len(self._values)  # type: ignore[arg-type]  # TypeError: Jinja then counts for itself

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._environment.check_deadline()
            yield value


def _most(value: Any) -> int:
    """How long a value of this type may be."""
    return MAX_CHARS if isinstance(value, str) else MAX_ITEMS


def _small(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > _most(value):
        what = "text" if isinstance(value, str) else "list"
        raise TemplateTooLarge(f"the template builds a {what} that is too long")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise TemplateTooLarge("the template computes a number that is too large")
    return value
