"""The graph of a SavedModel with TensorFlow's ops in place of ours.

Nothing is traced again: each op of ours becomes a call of a function of
TensorFlow's ops with the same inputs and outputs, and the resource of a table
becomes that of a uint8 variable. So signatures of functions stay as they are,
whatever calls what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.export.live import UPDATE, UPDATE_SPEC, update_function
from tfembed.export.oldest_tensorflow import drop_hints, obstacle_of_node
from tfembed.export.stock_lookup import Feature, StockTable, grouped_lookup
from tfembed.export.table_origins import TableOrigins, functions_of

__all__ = ["CONVERTED", "OURS", "StockGraph"]

OURS = "Tfembed>"

_LOOKUP = f"{OURS}TableLookup"
_GROUPED = f"{OURS}GroupedLookup"
_HAND_ON = (f"{OURS}TrainableRows", f"{OURS}TrainableRowsOf")
_RESTORE = f"{OURS}TableRestore"
_SAVE = f"{OURS}TableSave"

CONVERTED = (_LOOKUP, _GROUPED, *_HAND_ON, _RESTORE, _SAVE)
_WITH_TABLES = (_LOOKUP, _GROUPED, _RESTORE, _SAVE)

_HANDLE = tf.TensorSpec([], tf.resource)


class StockGraph:
    """Edits a graph and its functions.

    Args:
      graph: the GraphDef, which is edited.
      known: the tables by the names of the graph's nodes.
      origins: the tables at the arguments of functions.
      tensors: the names of the sealed tensors, by the names of the nodes that
        create the tables' shards.
    """

    def __init__(
        self,
        graph: Any,
        known: Mapping[str, frozenset[str]],
        origins: TableOrigins,
        tensors: Mapping[str, str],
    ) -> None:
        self._graph = graph
        self._known = known
        self._origins = origins
        self._tensors = tensors
        self._tables: Mapping[str, StockTable] = {}
        self._library = {f.signature.name: f for f in graph.library.function}
        self._made: dict[object, str] = {}
        for function in self._library.values():
            if any(node.op == _RESTORE for node in function.node_def):
                self._leave_dealing_out(function)

    def obstacle(self, function: str) -> str | None:
        """Returns why a function has no form in TensorFlow's ops, or None.

        The text names the function and op: "'train', which has the op
        Tfembed>TableUpsert".
        """
        for name in sorted(self._reachable([function])):
            for node in self._library[name].node_def:
                problem = self._problem(node, self._origins.of(name))
                if problem:
                    return f"'{name}', {problem}"
        return None

    def obstacle_of(self, tensors: Iterable[str]) -> str | None:
        """Returns why tensors of the graph have no form in TensorFlow's ops.

        None where they have one.
        """
        nodes = {node.name: node for node in self._graph.node}
        left, seen = list(tensors), set()
        while left:
            name = left.pop().removeprefix("^").split(":")[0]
            if name in seen or name in self._tensors:
                continue
            seen.add(name)
            node = nodes[name]
            problem = self._problem(node, self._known)
            if problem:
                return f"'{name}', {problem}"
            for function in functions_of(node):
                if obstacle := self.obstacle(function):
                    return obstacle
            left += node.input
        return None

    def keep(self, functions: Iterable[str]) -> set[str]:
        """Keeps functions and what the graph calls; removes all others.

        Returns:
          The names of the functions that are gone.
        """
        called = {
            name for node in self._graph.node for name in functions_of(node)
        }
        kept = self._reachable({*called, *functions})
        gone = {name for name in self._library if name not in kept}
        for name in gone:
            self._graph.library.function.remove(self._library.pop(name))
        lost = self._drop_gradients(gone)
        for function in self._library.values():
            for node in function.node_def:
                kind = node.attr.get("_gradient_op_type")
                if kind is not None and kind.s.decode() in lost:
                    del node.attr["_gradient_op_type"]
        return gone

    def convert(self, tables: Mapping[str, StockTable]) -> None:
        """Replaces all ops of ours.

        Args:
          tables: the tables by the names of their tensors.

        Raises:
          tfembed.errors.UnsupportedError: an op has no form.
        """
        self._tables = tables
        for name, function in list(self._library.items()):
            places = self._edit(function.node_def, self._origins.of(name), name)
            if not places:
                continue
            for node in function.node_def:
                node.input[:] = [_moved(given, places) for given in node.input]
            for output, given in list(function.ret.items()):
                function.ret[output] = _moved(given, places)
        self._edit(self._graph.node, self._known, "the graph")
        for node in self._graph.node:
            if node.name in self._tensors:
                _become_variable(node, self._tensors[node.name])
        self._hold_against_oldest()

    def add_update(self, inputs: Mapping[str, str]) -> str:
        """Adds what takes updates: a placeholder a table, and a call.

        The placeholders are named `<UPDATE>_0` and so on, in the order of the
        tensors' names; the call, `UPDATE`, has an output for each input.

        Args:
          inputs: the name of each table's input, by the name of its tensor.

        Returns:
          The name of the function that is called.
        """
        places = {}
        for i, tensor in enumerate(sorted(inputs)):
            node = self._graph.node.add()
            places[tensor] = node.name = f"{UPDATE}_{i}"
            node.op = "Placeholder"
            node.attr["dtype"].type = UPDATE_SPEC.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(UPDATE_SPEC.shape.as_proto())
        tensors = sorted(inputs, key=inputs.__getitem__)
        function = self._function(
            UPDATE,
            update_function([self._tables[tensor] for tensor in tensors]),
            [UPDATE_SPEC] * len(tensors),
        )
        call = self._graph.node.add()
        call.name = UPDATE
        call.input.extend(places[tensor] for tensor in tensors)
        self._become_call(call, function)
        self._hold_against_oldest()
        return function

    def _hold_against_oldest(self) -> None:
        """Checks all nodes of the graph, those of functions made here too.

        Raises:
          tfembed.errors.UnsupportedError: the oldest TensorFlow that serves
            the model lacks an op.
        """
        parts = {"the graph": self._graph.node} | {
            function.signature.name: function.node_def
            for function in self._graph.library.function
        }
        for name, nodes in parts.items():
            for node in nodes:
                if problem := obstacle_of_node(node):
                    raise errors.UnsupportedError(
                        f"'{name}' cannot be served by TensorFlow's ops: "
                        f"{problem}."
                    )
                drop_hints(node)

    def _leave_dealing_out(self, function: Any) -> None:
        """Leaves out what deals rows to shards in a function that restores.

        Rows that a partitioner or a hash of strings deals come in loops, a
        part of the file at a time. A sealed table has all shards in one.
        """
        left_out: set[str] = set()
        is_new = True
        while is_new:
            found = {
                node.name
                for node in function.node_def
                if self._deals(node)
                or any(given.split(":")[0] in left_out for given in node.input)
            }
            is_new = found != left_out
            left_out = found
        for node in function.node_def:
            if node.name not in left_out:
                continue
            node.op = "NoOp"
            node.ClearField("attr")
            waits = [given for given in node.input if given.startswith("^")]
            node.input[:] = waits

    def _deals(self, node: Any) -> bool:
        return any(
            one.op.startswith(OURS) and one.op not in CONVERTED
            for one in (
                node,
                *(
                    inner
                    for name in self._reachable(functions_of(node))
                    for inner in self._library[name].node_def
                ),
            )
        )

    def _drop_gradients(self, gone: set[str]) -> set[str]:
        """Removes gradients that are gone; returns the names of their ops."""
        registered = self._graph.library.registered_gradients
        lost = {
            g.registered_op_type for g in registered if g.gradient_func in gone
        }
        kept = [g for g in registered if g.gradient_func not in gone]
        del registered[:]
        registered.extend(kept)
        return lost

    def _reachable(self, roots: Iterable[str]) -> set[str]:
        found: set[str] = set()
        left = list(roots)
        while left:
            name = left.pop()
            if name in found or name not in self._library:
                continue
            found.add(name)
            for node in self._library[name].node_def:
                left += functions_of(node)
        return found

    def _problem(
        self, node: Any, known: Mapping[str, frozenset[str]]
    ) -> str | None:
        if not node.op.startswith(OURS):
            return obstacle_of_node(node)
        if node.op not in CONVERTED:
            return f"which has the op {node.op}"
        if node.op not in _WITH_TABLES:
            return None
        for given in node.input[: _num_tables(node)]:
            tables = known.get(given.split(":")[0], frozenset())
            if not tables & self._tensors.keys():
                return (
                    f"whose {node.op} '{node.name}' reads a table with a fixed "
                    "vocabulary, or one that is not known before it runs"
                )
            if len({self._tensors.get(table) for table in tables}) > 1:
                return (
                    f"whose {node.op} '{node.name}' reads one of several "
                    "tables, which is not known before it runs"
                )
        return None

    def _edit(
        self,
        nodes: Iterable[Any],
        known: Mapping[str, frozenset[str]],
        function: str,
    ) -> dict[str, dict[str, int]]:
        """Replaces ops; returns where the outputs of each node went."""
        places: dict[str, dict[str, int]] = {}
        for node in nodes:
            if node.op not in CONVERTED:
                continue
            problem = self._problem(node, known)
            if problem:
                raise errors.UnsupportedError(
                    f"'{function}' cannot be served by TensorFlow's ops: "
                    f"{problem}."
                )
            if node.op in _HAND_ON:
                _become_identity(node)
                places[node.name] = {"trainable_rows": 0}
                continue
            tables = [
                self._tables[self._tensors[min(known[given.split(":")[0]])]]
                for given in node.input[: _num_tables(node)]
            ]
            if node.op == _LOOKUP:
                made = self._lookup(node, tables[0])
                places[node.name] = {"values": 0, "exists": 1}
            elif node.op == _GROUPED:
                made = self._grouped(node, tables)
                places[node.name] = {"activations": 0}
            elif node.op == _RESTORE:
                made = self._restore(tables)
                places[node.name] = {"layouts": 0}
            else:
                made = self._save(tables)
                places[node.name] = {}
            self._become_call(node, made)
        return places

    def _lookup(self, node: Any, table: StockTable) -> str:
        shapes = _output_shapes(node)
        keys = tf.TensorSpec(
            tf.TensorShape(shapes[1]) if shapes else None,
            table.key_dtype,
        )
        return self._function(
            ("lookup", table.tensor, str(keys)), table.lookup, [_HANDLE, keys]
        )

    def _grouped(self, node: Any, tables: Sequence[StockTable]) -> str:
        attributes = node.attr
        features = [
            Feature(table, kind.decode(), combiner.decode(), validate, length)
            for table, kind, combiner, validate, length in zip(
                attributes["table_ids"].list.i,
                attributes["kinds"].list.s,
                attributes["combiners"].list.s,
                attributes["validate"].list.b,
                attributes["max_sequence_lengths"].list.i,
                strict=True,
            )
        ]
        rows = {"dense": [0], "ragged": [None], "sparse": [None, 2]}
        count = len(features)
        specs = [
            *[_HANDLE] * len(tables),
            *(
                tf.TensorSpec([None], tf.as_dtype(dtype))
                for dtype in attributes["Tids"].list.type
            ),
            *(tf.TensorSpec(rows[f.kind], tf.int64) for f in features),
            *[tf.TensorSpec([None], tf.float32)] * count,
            *[tf.TensorSpec([count], tf.int64)] * 2,
        ]
        key = (
            "grouped",
            tuple(table.tensor for table in tables),
            tuple(features),
            str(specs),
        )
        return self._function(
            key,
            lambda *arguments: grouped_lookup(tables, features, arguments),
            specs,
        )

    def _restore(self, shards: Sequence[StockTable]) -> str:
        tensors = list(dict.fromkeys(shard.tensor for shard in shards))
        firsts = [
            [shard.tensor for shard in shards].index(name) for name in tensors
        ]

        def restore(*arguments: tf.Tensor) -> tf.Tensor:
            *handles, prefix = arguments
            values = tf.raw_ops.RestoreV2(
                prefix=prefix,
                tensor_names=tensors,
                shape_and_slices=[""] * len(tensors),
                dtypes=[tf.uint8] * len(tensors),
            )
            done = [
                tf.raw_ops.AssignVariableOp(
                    resource=handles[first], value=value
                )
                for first, value in zip(firsts, values, strict=True)
            ]
            with tf.control_dependencies(done):
                return tf.constant([""] * len(tensors))

        specs = [*[_HANDLE] * len(shards), tf.TensorSpec([], tf.string)]
        return self._function(("restore", tuple(tensors)), restore, specs)

    def _save(self, shards: Sequence[StockTable]) -> str:
        tensors = list(dict.fromkeys(shard.tensor for shard in shards))
        firsts = [
            [shard.tensor for shard in shards].index(name) for name in tensors
        ]

        def save(*arguments: tf.Tensor) -> None:
            *handles, prefix = arguments
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=tensors,
                shape_and_slices=[""] * len(tensors),
                tensors=[
                    tf.raw_ops.ReadVariableOp(
                        resource=handles[first], dtype=tf.uint8
                    )
                    for first in firsts
                ],
            )

        specs = [*[_HANDLE] * len(shards), tf.TensorSpec([], tf.string)]
        return self._function(("save", tuple(tensors)), save, specs)

    def _function(
        self,
        key: object,
        python_function: Callable[..., Any],
        specs: Sequence[tf.TensorSpec],
    ) -> str:
        """Adds a function of TensorFlow's ops to the graph; returns its name.

        Its name and those of its branches begin with "tfembed_stock": a model
        has functions of the names that TensorFlow gives, traced elsewhere.
        """
        if key in self._made:
            return self._made[key]

        def on_host(*arguments: tf.Tensor) -> Any:
            with tf.device("/device:CPU:0"):
                return python_function(*arguments)

        concrete = tf.function(
            on_host, input_signature=specs, autograph=False
        ).get_concrete_function()
        graph = concrete.graph.as_graph_def(add_shapes=True)
        functions = [*graph.library.function, concrete.function_def]
        names = {
            function.signature.name: (
                f"tfembed_stock_{len(self._made)}_{i}_"
                + function.signature.name.strip("_")
            )
            for i, function in enumerate(functions)
        }
        for function in functions:
            function.signature.name = names[function.signature.name]
            for node in function.node_def:
                for value in node.attr.values():
                    for called in (
                        [value.func]
                        if value.HasField("func")
                        else value.list.func
                    ):
                        called.name = names.get(called.name, called.name)
            self._library[function.signature.name] = function
            self._graph.library.function.add().CopyFrom(function)
        self._made[key] = functions[-1].signature.name
        return self._made[key]

    def _become_call(self, node: Any, function: str) -> None:
        signature = self._library[function].signature
        shapes = _output_shapes(node)
        node.op = "StatefulPartitionedCall"
        node.ClearField("attr")
        node.ClearField("experimental_debug_info")
        node.attr["f"].func.name = function
        node.attr["Tin"].list.type.extend(a.type for a in signature.input_arg)
        node.attr["Tout"].list.type.extend(a.type for a in signature.output_arg)
        if shapes:
            node.attr["_output_shapes"].list.shape.extend(shapes)


def _num_tables(node: Any) -> int:
    if node.op == _LOOKUP:
        return 1
    return int(node.attr["T" if node.op == _GROUPED else "N"].i)


def _output_shapes(node: Any) -> list[Any]:
    """Returns copies of the static shapes of a node's outputs, or []."""
    if "_output_shapes" not in node.attr:
        return []
    kept = []
    for shape in node.attr["_output_shapes"].list.shape:
        copy = type(shape)()
        copy.CopyFrom(shape)
        kept.append(copy)
    return kept


def _become_identity(node: Any) -> None:
    """Turns a TrainableRows, whose third input are the rows, into Identity."""
    shapes = _output_shapes(node)
    inputs = [name for name in node.input if not name.startswith("^")]
    waits = [name for name in node.input if name.startswith("^")]
    node.op = "Identity"
    node.input[:] = [inputs[2], *waits]
    node.ClearField("attr")
    node.attr["T"].type = tf.float32.as_datatype_enum
    if shapes:
        node.attr["_output_shapes"].list.shape.extend(shapes)


def _become_variable(node: Any, name: str) -> None:
    """Turns a TableCreate into the handle of a uint8 variable."""
    node.op = "VarHandleOp"
    node.ClearField("attr")
    node.device = ""
    node.attr["dtype"].type = tf.uint8.as_datatype_enum
    node.attr["shape"].shape.dim.add().size = -1
    node.attr["shared_name"].s = name.encode()
    node.attr["_output_shapes"].list.shape.add()


def _moved(given: str, places: Mapping[str, Mapping[str, int]]) -> str:
    """Returns the name that an input of a function's node has now.

    Outputs of a node are "node:values:0" in functions; those of a call are
    "node:output:0".
    """
    parts = given.split(":")
    if len(parts) != 3 or parts[1] not in places.get(parts[0], {}):
        return given
    place = places[parts[0]][parts[1]] + int(parts[2])
    return f"{parts[0]}:output:{place}"
