"""The part of a graph that a Saver of TensorFlow 1 made for its tables.

It reads each table's columns, checks them, deals them to shards and replaces
what the table holds. A sealed table has one tensor, which is read and assigned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfembed import errors

__all__ = ["SaverGraph"]

_OURS = "Tfembed>"
_CREATE = f"{_OURS}TableCreate"
_REPLACE = f"{_OURS}TableReplace"


class SaverGraph:
    """A graph with its Savers.

    Args:
      graph: the GraphDef, which `seal` edits.
      known: the nodes that create tables, by the names of the nodes that hand
        them on.

    Attributes:
      shards: the nodes that create each table's shards, in their order, by the
        prefix of the table's tensors.

    Raises:
      tfembed.errors.CheckpointError: the graph is damaged.
    """

    def __init__(self, graph: Any, known: Mapping[str, frozenset[str]]) -> None:
        self._graph = graph
        self._nodes = {node.name: node for node in graph.node}
        # The op that reads the keys of each op that replaces a table.
        self._reads: dict[str, str] = {}
        self._prefixes: dict[str, str] = {}
        self.shards: dict[str, list[str]] = {}
        for node in graph.node:
            if node.op != _REPLACE:
                continue
            count = node.attr["N"].i
            handles = [_node_of(name) for name in node.input[:count]]
            prefix = self._find_keys(node, node.input[count])
            own = self.shards.setdefault(prefix, [])
            own += [
                shard
                for shard in (min(known[name]) for name in handles)
                if shard not in own
            ]

    def seal(
        self, tensors: Mapping[str, str], converted: Collection[str]
    ) -> tuple[dict[str, tuple[str, str]], set[str]]:
        """Has Savers read and write one tensor for each table.

        All shards become the first one. Nodes that dealt, checked or noted
        what was read are removed.

        Args:
          tensors: the names of the sealed tensors, by the tables' prefixes.
          converted: the ops of ours that have a form in TensorFlow's.

        Returns:
          The ops that assign and that read the variable of each first shard;
          and the names of the tables' tensors, which are in no file now.
        """
        firsts = {
            other: shards[0]
            for shards in self.shards.values()
            for other in shards[1:]
        }
        for node in self._graph.node:
            node.input[:] = [_renamed(name, firsts) for name in node.input]
        lost = {
            node.name
            for node in self._graph.node
            if node.op.startswith(_OURS)
            and node.op not in (*converted, _CREATE, _REPLACE)
        }
        lost |= firsts.keys()
        gone = {
            f"{prefix}-{column}"
            for prefix in self.shards
            for column in ("keys", "values")
        }
        reads = {
            prefix: self._add_read(shards[0])
            for prefix, shards in self.shards.items()
        }
        for node in self._all("SaveV2"):
            gone |= self._seal_save(node, tensors, reads)
        for node in self._all("RestoreV2"):
            lost |= self._seal_restore(node, tensors, gone)
        variables = {}
        for name, prefix in self._prefixes.items():
            first = self.shards[prefix][0]
            self._become_assignment(self._nodes[name], first, tensors[prefix])
            variables[first] = (name, reads[prefix])
        self._remove(lost - self._prefixes.keys())
        return variables, gone

    def _find_keys(self, node: Any, keys: str) -> str:
        """Notes which op reads a table's keys; returns its tensors' prefix."""
        for above, output in self._above(keys):
            if above.op != "RestoreV2":
                continue
            name = self._texts(above.input[1])[output]
            if name.endswith("-keys"):
                self._reads[node.name] = above.name
                prefix = name.removesuffix("-keys")
                self._prefixes[node.name] = prefix
                return prefix
        raise errors.CheckpointError(
            f"The graph is damaged: no RestoreV2 reads the keys of "
            f"'{node.name}'."
        )

    def _above(self, tensor: str) -> Iterator[tuple[Any, int]]:
        """Yields the outputs of nodes that a tensor is computed from."""
        left, seen = [tensor], set()
        while left:
            name = left.pop()
            if name in seen or name.startswith("^"):
                continue
            seen.add(name)
            node = self._nodes[_node_of(name)]
            yield node, _output_of(name)
            left += node.input

    def _texts(self, name: str) -> list[str]:
        """Returns the strings of a constant."""
        value = tf.make_ndarray(
            self._nodes[_node_of(name)].attr["value"].tensor
        )
        return [text.decode() for text in value.ravel().tolist()]

    def _all(self, op: str) -> list[Any]:
        return [node for node in self._graph.node if node.op == op]

    def _add(self, name: str, op: str, *inputs: str) -> Any:
        node = self._graph.node.add()
        node.name, node.op = name, op
        node.input.extend(inputs)
        self._nodes[name] = node
        return node

    def _add_read(self, handle: str) -> str:
        name = f"{handle}/Read/ReadVariableOp"
        node = self._add(name, "ReadVariableOp", handle)
        node.attr["dtype"].type = tf.uint8.as_datatype_enum
        return name

    def _add_texts(self, name: str, texts: list[str]) -> str:
        node = self._add(name, "Const")
        node.attr["dtype"].type = tf.string.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(texts))
        return name

    def _seal_save(
        self, node: Any, tensors: Mapping[str, str], reads: Mapping[str, str]
    ) -> set[str]:
        """Edits a SaveV2; returns the names of tensors that it wrote."""
        names = self._texts(node.input[1])
        slices = self._texts(node.input[2])
        types = list(node.attr["dtypes"].list.type)
        file, _, _, *values = node.input
        values, waits = values[: len(names)], values[len(names) :]
        begins = tuple(f"{prefix}-" for prefix in tensors)
        gone = {
            name
            for name, value in zip(names, values, strict=True)
            if name.startswith(begins)
            and any(n.op.startswith(_OURS) for n, _ in self._above(value))
        }
        saved = [
            one
            for one in zip(names, slices, types, values, strict=True)
            if one[0] not in gone
        ]
        saved += [
            (tensor, "", tf.uint8.as_datatype_enum, reads[prefix])
            for prefix, tensor in tensors.items()
            if f"{prefix}-keys" in gone
        ]
        self._set_columns(node, [one[:3] for one in saved])
        node.input[:] = [file, *node.input[1:3], *(s[3] for s in saved), *waits]
        return gone

    def _seal_restore(
        self, node: Any, tensors: Mapping[str, str], gone: set[str]
    ) -> set[str]:
        """Edits a RestoreV2; returns the nodes that read lost outputs."""
        names = self._texts(node.input[1])
        slices = self._texts(node.input[2])
        types = list(node.attr["dtypes"].list.type)
        kept = [i for i, name in enumerate(names) if name not in gone]
        if len(kept) == len(names):
            return set()
        lost = set()
        places = {old: new for new, old in enumerate(kept)}
        for reader in self._graph.node:
            for i, given in enumerate(reader.input):
                if given.startswith("^") or _node_of(given) != node.name:
                    continue
                place = places.get(_output_of(given))
                if place is None:
                    lost.add(reader.name)
                else:
                    reader.input[i] = f"{node.name}:{place}"
        columns = [(names[i], slices[i], types[i]) for i in kept]
        columns += [
            (tensor, "", tf.uint8.as_datatype_enum)
            for prefix, tensor in tensors.items()
            if f"{prefix}-keys" in names
        ]
        self._set_columns(node, columns)
        return lost

    def _set_columns(
        self, node: Any, columns: list[tuple[str, str, int]]
    ) -> None:
        """Sets the names, slices and dtypes of a SaveV2 or RestoreV2."""
        names, slices, types = map(list, zip(*columns, strict=True))
        node.input[1] = self._add_texts(f"{node.name}/sealed_names", names)
        node.input[2] = self._add_texts(f"{node.name}/sealed_slices", slices)
        node.attr["dtypes"].list.type[:] = types
        node.attr.pop("_output_shapes", None)

    def _become_assignment(self, node: Any, handle: str, tensor: str) -> None:
        """Turns a TableReplace into an assignment of the sealed tensor."""
        read = self._nodes[self._reads[node.name]]
        place = self._texts(read.input[1]).index(tensor)
        node.op = "AssignVariableOp"
        node.input[:] = [handle, f"{read.name}:{place}"]
        node.ClearField("attr")
        node.attr["dtype"].type = tf.uint8.as_datatype_enum

    def _remove(self, lost: set[str]) -> None:
        """Removes nodes, and all that compute with what they gave."""
        size = -1
        while size != len(lost):
            size = len(lost)
            lost |= {
                node.name
                for node in self._graph.node
                if any(
                    _node_of(name) in lost
                    for name in node.input
                    if not name.startswith("^")
                )
            }
        kept = [node for node in self._graph.node if node.name not in lost]
        for node in kept:
            node.input[:] = [
                name for name in node.input if _node_of(name) not in lost
            ]
        del self._graph.node[:]
        self._graph.node.extend(kept)


def _node_of(name: str) -> str:
    return name.removeprefix("^").split(":")[0]


def _output_of(name: str) -> int:
    _, _, place = name.partition(":")
    return int(place or 0)


def _renamed(name: str, others: Mapping[str, str]) -> str:
    """Returns an input with the node of another name in its place."""
    node = _node_of(name)
    return name.replace(node, others[node], 1) if node in others else name
