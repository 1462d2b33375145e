"""The parts of a SavedModel that no public API edits: its graph and objects.

This is the only file that knows TensorFlow's protocol buffers of SavedModels
and of checkpoints' object graphs.
"""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf
from google.protobuf import message
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import (
    saved_model_pb2,
    trackable_object_graph_pb2,
)

from tfembed import errors
from tfembed.export.live import UPDATE

__all__ = ["SavedModelGraph", "sealed_checkpoint_objects", "sealed_tensor"]

_GRAPH_FILE = "saved_model.pb"
_TABLE = "tfembed.HashTable"
_STRING_TABLE = "tfembed.StringTable"
_ATTRIBUTES = "/.ATTRIBUTES"


def sealed_tensor(prefix: str) -> str:
    """Returns the name of a sealed table's tensor in a checkpoint.

    `tf.saved_model.load` makes this name itself: the table's path, the
    attribute `sealed`, and the attribute of a variable's value.

    Args:
      prefix: the prefix of the hash table's tensors.
    """
    path = prefix.removesuffix(_ATTRIBUTES)
    return f"{path}/sealed{_ATTRIBUTES}/VARIABLE_VALUE"


class SavedModelGraph:
    """A SavedModel's file of graphs and objects.

    Args:
      folder: the SavedModel.
      tags: the tags of the graph; None: it is the only one.

    Attributes:
      meta: the MetaGraphDef, whose `graph_def` may be edited.
      has_objects: whether `tf.saved_model.save` wrote it, and not a Saver of
        TensorFlow 1, as estimators do.

    Raises:
      tfembed.errors.CheckpointError: the folder is no SavedModel, or its file
        is damaged.
      tfembed.errors.ArgumentError: no graph has these tags, or there are
        several and no tags.
    """

    def __init__(
        self, folder: pathlib.Path, tags: Collection[str] | None = None
    ) -> None:
        path = folder / _GRAPH_FILE
        if not path.is_file():
            raise errors.CheckpointError(
                f"'{folder}' is no SavedModel: it has no file '{_GRAPH_FILE}'."
            )
        self._model = saved_model_pb2.SavedModel()
        try:
            self._model.ParseFromString(path.read_bytes())
        except message.DecodeError:
            raise errors.CheckpointError(f"'{path}' is damaged.") from None
        self._choose(folder, tags)
        self.meta: Any = self._model.meta_graphs[0]
        self.has_objects: bool = self.meta.HasField("object_graph_def")
        self._objects: Any = self.meta.object_graph_def
        self._paths = _paths(self._objects)
        strings = [
            self._paths[i]
            for i, node in enumerate(self._objects.nodes)
            if node.registered_name == _STRING_TABLE
        ]
        if strings:
            raise errors.UnsupportedError(
                f"Tables of strings {strings} have no form in TensorFlow's ops "
                "in this release."
            )

    def _choose(
        self, folder: pathlib.Path, tags: Collection[str] | None
    ) -> None:
        """Leaves the graph with these tags alone in the SavedModel."""
        graphs = list(self._model.meta_graphs)
        known = [sorted(graph.meta_info_def.tags) for graph in graphs]
        if tags is None and len(graphs) != 1:
            raise errors.ArgumentError(
                f"'{folder}' has {len(graphs)} graphs, with the tags {known}. "
                "Choose one with `tags`."
            )
        if tags is not None and sorted(tags) not in known:
            raise errors.ArgumentError(
                f"`tags` must be those of a graph of '{folder}', one of "
                f"{known}; got {sorted(tags)}."
            )
        if tags is not None:
            chosen = graphs[known.index(sorted(tags))]
            del self._model.meta_graphs[:]
            self._model.meta_graphs.append(chosen)

    def signature_inputs(self) -> dict[str, dict[str, tf.TensorSpec]]:
        """Returns the inputs of each signature."""
        return {
            name: {
                key: tf.TensorSpec(
                    tf.TensorShape(given.tensor_shape), tf.as_dtype(given.dtype)
                )
                for key, given in signature.inputs.items()
            }
            for name, signature in self.meta.signature_def.items()
            if not name.startswith("__")  # What a session runs first.
        }

    def signature_outputs(self) -> dict[str, list[str]]:
        """Returns the tensors that each signature gives."""
        return {
            name: [
                tensor
                for output in signature.outputs.values()
                for tensor in (
                    output.name,
                    output.coo_sparse.values_tensor_name,
                    output.coo_sparse.indices_tensor_name,
                    output.coo_sparse.dense_shape_tensor_name,
                    *(one.name for one in output.composite_tensor.components),
                )
                if tensor
            ]
            for name, signature in self.meta.signature_def.items()
        }

    def shards(self) -> dict[str, list[int]]:
        """Returns the objects of each hash table's shards, by table path."""
        found: dict[str, list[int]] = {}
        for i, node in enumerate(self._objects.nodes):
            if node.registered_name != _TABLE:
                continue
            numbered = {
                int(child.local_name.removeprefix("shard_")): child.node_id
                for child in node.children
                if child.local_name.startswith("shard_")
            }
            found[self._paths[i]] = [numbered[n] for n in sorted(numbered)]
        return found

    def bound_inputs(self) -> dict[str, list[int]]:
        """Returns the objects that each concrete function's last inputs are."""
        return {
            name: list(function.bound_inputs)
            for name, function in self._objects.concrete_functions.items()
        }

    def public_functions(self) -> dict[str, list[str]]:
        """Returns the concrete functions of each function, by its path.

        Functions of tables, which create and destroy them, are left out.
        """
        of_shards = {
            child.node_id
            for shards in self.shards().values()
            for shard in shards
            for child in self._objects.nodes[shard].children
        }
        return {
            self._paths[i]: list(node.function.concrete_functions)
            for i, node in enumerate(self._objects.nodes)
            if node.HasField("function") and i not in of_shards
        }

    def seal_objects(self, gone: Collection[str]) -> None:
        """Turns tables into objects with a variable `sealed`.

        Args:
          gone: the functions that the graph no longer has.
        """
        nodes = self._objects.nodes
        alias: dict[int, int] = {}
        for i, path in self._paths.items():
            if nodes[i].registered_name != _TABLE:
                continue
            first, *others = self.shards()[path]
            _become_plain(nodes[i])
            child = nodes[i].children.add()
            child.local_name, child.node_id = "sealed", first
            nodes[first].Clear()
            variable = nodes[first].variable
            variable.dtype = _UINT8
            variable.shape.dim.add().size = -1
            variable.name = path.replace("/", "_")
            for shard in others:
                _become_plain(nodes[shard])
            alias |= dict.fromkeys(others, first)
        for node in nodes:
            if node.HasField("bare_concrete_function"):
                name = node.bare_concrete_function.concrete_function_name
                if name in gone:
                    _become_plain(node)
            elif node.HasField("function"):
                kept = [
                    name
                    for name in node.function.concrete_functions
                    if name not in gone
                ]
                node.function.concrete_functions[:] = kept
        functions = self._objects.concrete_functions
        for name in [name for name in functions if name in gone]:
            del functions[name]
        for function in functions.values():
            bound = function.bound_inputs
            bound[:] = [alias.get(number, number) for number in bound]
        info = self.meta.meta_info_def
        info.ClearField("stripped_op_list")
        for name in [n for n in info.function_aliases if n in gone]:
            del info.function_aliases[name]

    def add_update(self, inputs: Mapping[str, str], function: str) -> None:
        """Adds the signature `UPDATE`.

        Args:
          inputs: the name of each table's input, by the name of its tensor.
          function: the function of the signature, whose arguments and outputs
            are in the order of the inputs' names.
        """
        names = sorted(inputs.values())
        signature = self.meta.signature_def[UPDATE]
        signature.method_name = "tensorflow/serving/predict"
        for i, tensor in enumerate(sorted(inputs)):
            given = signature.inputs[inputs[tensor]]
            given.name = f"{UPDATE}_{i}:0"
            given.dtype = _UINT8
            given.tensor_shape.dim.add().size = -1
        for i, name in enumerate(names):
            output = signature.outputs[name]
            output.name = f"{UPDATE}:{i}"
            output.dtype = _INT64
            output.tensor_shape.SetInParent()
        signatures = [
            child.node_id
            for child in (
                self._objects.nodes[0].children if self.has_objects else ()
            )
            if child.local_name == "signatures"
        ]
        for number in signatures:
            child = self._objects.nodes[number].children.add()
            child.local_name = UPDATE
            child.node_id = len(self._objects.nodes)
            bare = self._objects.nodes.add().bare_concrete_function
            bare.concrete_function_name = function
            bare.argument_keywords.extend(names)
            described = self._objects.concrete_functions[function]
            arguments = described.canonicalized_input_signature.tuple_value
            arguments.values.add().tuple_value.SetInParent()
            arguments.values.add().dict_value.SetInParent()
            for name in names:
                for fields, info in (
                    (arguments.values[1].dict_value.fields, signature.inputs),
                    (
                        described.output_signature.dict_value.fields,
                        signature.outputs,
                    ),
                ):
                    spec = fields[name].tensor_spec_value
                    spec.name = name
                    spec.dtype = info[name].dtype
                    spec.shape.CopyFrom(info[name].tensor_shape)

    def update_inputs(self) -> dict[str, int]:
        """Returns the inputs of `UPDATE`, each with the number of its table.

        Tables are counted in the order of their tensors' names.
        """
        if UPDATE not in self.meta.signature_def:
            return {}
        return {
            name: int(given.name.removeprefix(f"{UPDATE}_").split(":")[0])
            for name, given in self.meta.signature_def[UPDATE].inputs.items()
        }

    def seal_collections(
        self, variables: Mapping[str, tuple[str, str]]
    ) -> None:
        """Enters sealed tables into the collections of TensorFlow 1's graph.

        Args:
          variables: the ops that assign and that read each variable, by the
            name of its handle.
        """
        nodes = {node.name for node in self.meta.graph_def.node}
        collections = self.meta.collection_def
        # A Saver of the imported graph would take tables for its objects.
        collections.pop("saveable_objects", None)
        for collection in collections.values():
            names = collection.node_list.value
            if collection.WhichOneof("kind") == "node_list":
                names[:] = [n for n in names if n.split(":")[0] in nodes]
        for handle, (assign, read) in variables.items():
            described = variable_pb2.VariableDef(
                variable_name=f"{handle}:0",
                initializer_name=assign,
                snapshot_name=f"{read}:0",
                is_resource=True,
                trainable=False,
            )
            collections["variables"].bytes_list.value.append(
                described.SerializeToString()
            )
        self.meta.meta_info_def.ClearField("stripped_op_list")

    def write(self, folder: pathlib.Path) -> None:
        """Writes the file into a folder."""
        (folder / _GRAPH_FILE).write_bytes(self._model.SerializeToString())


def sealed_checkpoint_objects(text: bytes, tensors: Mapping[str, str]) -> bytes:
    """Returns a checkpoint's object graph with variables in place of tables.

    Args:
      text: the object graph.
      tensors: the names of the sealed tensors by the paths of tables.

    Raises:
      tfembed.errors.CheckpointError: the text is damaged.
    """
    objects: Any = trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        objects.ParseFromString(text)
    except message.DecodeError:
        raise errors.CheckpointError(
            "The object graph of the SavedModel's variables is damaged."
        ) from None
    for node in list(objects.nodes):
        path = node.registered_saver.object_name
        if path not in tensors:
            continue
        node.Clear()
        child = node.children.add()
        child.local_name, child.node_id = "sealed", len(objects.nodes)
        attribute = objects.nodes.add().attributes.add()
        attribute.name = "VARIABLE_VALUE"
        attribute.full_name = path
        attribute.checkpoint_key = tensors[path]
    result: bytes = objects.SerializeToString()
    return result


_UINT8, _INT64 = 4, 9  # TensorFlow's numbers of the dtypes.


def _become_plain(node: Any) -> None:
    """Turns an object into one without functions, values and children."""
    node.Clear()
    node.user_object.identifier = "_generic_user_object"
    node.user_object.version.producer = 1
    node.user_object.version.min_consumer = 1


def _paths(objects: Any) -> dict[int, str]:
    """Returns the path of each object as checkpoints name it.

    That is the first found breadth first from the root.
    """
    found = {0: ""} if objects.nodes else {}
    left = list(found)
    while left:
        number = left.pop(0)
        for child in objects.nodes[number].children:
            if child.node_id in found:
                continue
            name = child.local_name.replace(".", "..").replace("/", ".S")
            found[child.node_id] = f"{found[number]}/{name}".strip("/")
            left.append(child.node_id)
    for number in range(len(objects.nodes)):
        found.setdefault(number, f"object {number}")
    return found
