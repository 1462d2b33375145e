"""Functions that a step calls, and each replica's own copies of them.

The bodies of loops and branches (control flow v2) and of tf.functions are not
ops of the graph. A replica gets a copy of a function where the function's ops
differ between replicas: random ops with seeds, and collectives.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed.estimator.replicas import private
from tfembed.estimator.replicas.step_graph import (
    COLLECTIVES,
    FunctionNames,
    StepGraph,
    differ,
    functions_of,
    is_random,
)

_NUMBERS = itertools.count()


class FunctionCopies:
    """The copies of a step's functions, and collectives that run together.

    Attributes:
      have_collectives: whether a function has a collective.
    """

    def __init__(self, graph: tf.Graph, step: StepGraph, replicas: int) -> None:
        self._graph = graph
        self._step = step
        self._replicas = replicas
        self._known: dict[str, Any] = {}
        self._copied: dict[int, FunctionNames] = {}
        # Graphs of a process have other keys.
        self._number = next(_NUMBERS)
        self.have_collectives = False
        calls = list(step.functions()) if replicas > 1 else []
        if not calls:
            return
        self._known = {
            function.signature.name: function
            for function in graph.as_graph_def().library.function
        }
        self._add_for_the_first(calls)
        for replica in range(1, replicas):
            names: dict[tuple[str, str], str] = {}
            library: Any = tf.compat.v1.GraphDef().library
            for op, _, name in step.functions():
                if self._has(name, _differs):
                    names[op.name, name] = self._copy(
                        name, op.name, replica, library
                    )
            self._copied[replica] = FunctionNames(names, library)

    def meet(self, op: tf.Operation) -> None:
        """Makes a collective of replica 0 wait for its copies, when it runs."""
        private.set_attributes(
            op,
            {
                "_tfembed_replicas": self._replicas,
                "_tfembed_replica": 0,
                "_tfembed_key": self._key(op.name),
            },
        )
        around = private.contexts_around(op)
        for enter in self._step.ops:
            # Iterations of loops around the op come in their order.
            if enter.type == "Enter" and any(
                private.context_of(enter) is context for context in around
            ):
                private.set_attributes(enter, {"parallel_iterations": 1})

    def _key(self, path: str) -> bytes:
        return f"{self._number}:{path}".encode()

    def of_replica(self, replica: int) -> FunctionNames:
        """A replica's copies, from replica 1 on."""
        if replica in self._copied:
            return self._copied[replica]
        return FunctionNames({}, tf.compat.v1.GraphDef().library)

    def _add_for_the_first(
        self, calls: list[tuple[tf.Operation, str, str]]
    ) -> None:
        """Gives replica 0, too, copies of functions with collectives."""
        definition = tf.compat.v1.GraphDef()
        changed: dict[tf.Operation, dict[str, str]] = {}
        for op, _, name in calls:
            if self._has(name, _is_collective):
                copy = self._copy(name, op.name, 0, definition.library)
                changed.setdefault(op, {})[name] = copy
        if not changed:
            return
        self.have_collectives = True
        with private.outside_of_contexts(self._graph):
            tf.graph_util.import_graph_def(definition, name="replica_0")
        for function in definition.library.function:
            self._known[function.signature.name] = function
        for op, names in changed.items():
            new = {}
            for attribute, value in op.node_def.attr.items():
                for function in functions_of(value):
                    if function.name in names:
                        function.name = names[function.name]
                        new[attribute] = value
            if "parallel_iterations" in op.node_def.attr:
                new["parallel_iterations"] = 1
            private.set_attributes(op, new)

    def _has(self, name: str, asked: Callable[[Any], bool]) -> bool:
        """Whether a function, or one that it calls, has such a NodeDef."""
        seen, todo = {name}, [name]
        while todo:
            function = self._known.get(todo.pop())
            for node in function.node_def if function is not None else ():
                if asked(node):
                    return True
                for called in _called(node):
                    if called not in seen:
                        seen.add(called)
                        todo.append(called)
        return False

    def _copy(self, name: str, path: str, replica: int, library: Any) -> str:
        """Adds a copy of a function to a library, and returns its name."""
        function = library.function.add()
        function.CopyFrom(self._known[name])
        place = re.sub(r"\W", "_", path)
        copy = f"{name.partition('__at__')[0]}__at__{place}_replica_{replica}"
        function.signature.name = copy
        for node in function.node_def:
            at = f"{path}/{node.name}"
            if node.op in COLLECTIVES:
                if replica == 0:
                    node.attr["_tfembed_key"].s = self._key(at)
                node.attr["_tfembed_replicas"].i = self._replicas
                node.attr["_tfembed_replica"].i = replica
            if replica > 0:
                differ(node, replica)
            for called in _called(node):
                if not self._has(called, _differs):
                    continue
                own = self._copy(called, at, replica, library)
                _rename(node, called, own)
                if "parallel_iterations" in node.attr:
                    node.attr["parallel_iterations"].i = 1
        return copy


def _is_collective(node: Any) -> bool:
    return node.op in COLLECTIVES


def _differs(node: Any) -> bool:
    return _is_collective(node) or is_random(node)


def _called(node: Any) -> list[str]:
    names = [
        f.name for value in node.attr.values() for f in functions_of(value)
    ]
    return [*dict.fromkeys(names), node.op]


def _rename(node: Any, name: str, copy: str) -> None:
    if node.op == name:
        node.op = copy
    for value in node.attr.values():
        for function in functions_of(value):
            if function.name == name:
                function.name = copy
