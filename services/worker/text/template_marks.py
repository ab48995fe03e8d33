"""Finds the control tokens that a chat template writes, and those that it searches for in messages.

Templates write most control tokens as literals (`{{ '<|im_end|>' }}`), and search for a few in the
assistant's messages (`'</think>' in message.content`). With marks around the written literals, the prompt
shows which control tokens come from the template.
"""

from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from services.worker.text.patterns import any_text


class MarkLiterals(NodeTransformer):
    """Puts `before` and `after` around texts, in place, wherever the template writes them.

    Attributes:
        searched: After the visit, the texts that the template compares with, splits at, or keeps in
            variables.
    """

    def __init__(self, texts: Iterable[str], before: str, after: str) -> None:
        self.searched: set[str] = set()
        self._texts = sorted(texts, key=len, reverse=True)
        self._any = any_text(self._texts)
        self._marked = f"{before}\\g<0>{after}"

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        """Mark what is written."""
        node.nodes = [self._written(expression) for expression in node.nodes]
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Assign:
        """Treat a variable as both written and searched for."""
        for constant in node.node.find_all(nodes.Const):
            self._note(constant)
        if isinstance(node.node, nodes.Const):
            self._note(node.node)
        node.node = self._written(node.node)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Const:
        """Note a constant anywhere else: an operand of a comparison, an argument, a key."""
        self._note(node)
        return node

    def _written(self, node: Any) -> Any:
        if isinstance(node, nodes.TemplateData):
            node.data = self._any.sub(self._marked, node.data)
        elif isinstance(node, nodes.Const):
            if isinstance(node.value, str):
                node.value = self._any.sub(self._marked, node.value)
        elif isinstance(node, nodes.Add):
            node.left, node.right = self._written(node.left), self._written(node.right)
        elif isinstance(node, nodes.CondExpr):
            node.test = self.visit(node.test)
            node.expr1 = self._written(node.expr1)
            node.expr2 = self._written(node.expr2) if node.expr2 is not None else None
        elif isinstance(node, nodes.Filter) and node.node is not None:
            node.node = self._written(node.node)
            node.args = [self.visit(argument) for argument in node.args]
        else:
            return self.visit(node)
        return node

    def _note(self, node: nodes.Const) -> None:
        if isinstance(node.value, str):
            self.searched.update(text for text in self._texts if text in node.value)
