"""Which tables may come in at which argument of each function of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["TableOrigins", "functions_of"]

# Ops whose first input chooses among their functions, and goes to none.
_CHOOSERS = ("If", "StatelessIf", "Case", "StatelessCase")

_Tables = frozenset[str]


def functions_of(node: Any) -> Iterator[str]:
    """Yields the names of the functions that a node's attributes name."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        for function in value.list.func:
            yield function.name


class TableOrigins:
    """The tables that each resource argument of each function may be.

    Args:
      library: the functions of the graph by name.
    """

    def __init__(self, library: Mapping[str, Any]) -> None:
        self._library = library
        self._of: dict[str, dict[str, _Tables]] = {}

    def of(self, function: str) -> dict[str, _Tables]:
        """Returns the tables by the names of arguments and of nodes."""
        return self._of.get(function, {})

    def enter(self, function: str, tables: Mapping[str, _Tables]) -> None:
        """Notes tables of a function's arguments, and follows its calls."""
        if function not in self._library:
            return
        known = self._of.setdefault(function, {})
        grown = {
            name: known.get(name, frozenset()) | more
            for name, more in tables.items()
        }
        if all(known.get(name) == more for name, more in grown.items()):
            return
        known.update(grown)
        self.follow(self._library[function].node_def, known)

    def follow(self, nodes: Iterable[Any], known: dict[str, _Tables]) -> None:
        """Follows tables through nodes and what they call.

        Args:
          nodes: the nodes of a function or graph, in any order.
          known: the tables by the names of nodes and arguments, which grows.
        """
        nodes = list(nodes)
        is_new = True
        while is_new:
            is_new = False
            for node in nodes:
                inputs = _inputs(node)
                if node.op != "Identity" or inputs[0] not in known:
                    continue
                is_new |= known.get(node.name) != known[inputs[0]]
                known[node.name] = known[inputs[0]]
        for node in nodes:
            inputs = _inputs(node)[1 if node.op in _CHOOSERS else 0 :]
            for name in functions_of(node):
                if name not in self._library:
                    continue
                arguments = self._library[name].signature.input_arg
                self.enter(
                    name,
                    {
                        argument.name: known[given]
                        for argument, given in zip(
                            arguments, inputs, strict=False
                        )
                        if given in known
                    },
                )


def _inputs(node: Any) -> list[str]:
    """Returns the names of the nodes and arguments that a node reads."""
    return [
        name.split(":")[0] for name in node.input if not name.startswith("^")
    ]
