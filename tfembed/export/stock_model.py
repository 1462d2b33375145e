"""Makes a SavedModel that needs TensorFlow alone of one that needs tfembed."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.export.check import (
    OutputReport,
    compared,
    fitting,
    read_inputs,
    write_warm_up,
)
from tfembed.export.initial_rows import InitialRows
from tfembed.export.live import input_names
from tfembed.export.report import Report, TableReport
from tfembed.export.row_format import FORMATS, RowFormat
from tfembed.export.saved_model import SavedModelGraph, sealed_tensor
from tfembed.export.saver_graph import SaverGraph
from tfembed.export.sealed_table import SealedFile, seal
from tfembed.export.stock_graph import CONVERTED, OURS, StockGraph
from tfembed.export.stock_lookup import StockTable, fingerprints_of
from tfembed.export.table_origins import TableOrigins
from tfembed.export.variables import Variables
from tfembed.saved.saved_table import SavedTable, table_name
from tfembed.saved.saved_tables import open_saved
from tfembed.saved.written_file import place_of, written_file

__all__ = ["to_stock"]

_CREATE = f"{OURS}TableCreate"
_RESTORE = f"{OURS}TableRestore"
# What tf.saved_model.save writes beside the graph and the variables.
_ASSETS = ("assets", "assets.extra")
# The difference of two outputs, as a share of their size, that is rounding.
_MOST_ROUNDING = 1e-5


def to_stock(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    rows: str = "as_trained",
    most_error: float | None = None,
    check: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    tags: str | Iterable[str] | None = None,
    live: bool = False,
) -> Report:
    """Converts a SavedModel to one of TensorFlow's ops alone.

    The new model has the same signatures, and gives the same outputs bit for
    bit, also for ids that have no row. It loads in every program that loads
    SavedModels with TensorFlow 2.13 or later; tfembed need not be there. Nothing is traced again: ops of
    tfembed become calls of functions of TensorFlow's ops, and each table one
    uint8 variable. Tables are read from the files; none is made.

    Functions that are no signatures are kept where they have a form in
    TensorFlow's ops; others, those that train for instance, are left out. The
    new model cannot be trained or changed.

    Args:
      source: the folder of a SavedModel, as `model.export`,
        `tf.saved_model.save` or an estimator writes it.
      target: the folder to write, which must not be there. It appears whole
        or not at all. Folders above it are made.
      rows: how rows of floats are stored: "as_trained", "float32", "bfloat16",
        or "int8": a byte a number and four bytes a row, each number off by
        about 1/510 of its row's range. Signatures keep their dtypes, and
        initial rows of ids without a row stay equal bit for bit.
      most_error: the largest difference of a stored number from the trained
        one; None: any.
      check: inputs of a signature by their names, a dict of tensors or arrays
        or the path of an .npz file. Both models then answer them, each in a
        process of its own, that of the new model without tfembed. Outputs are
        compared, and the inputs become requests by which TensorFlow Serving
        warms up (`assets.extra/tf_serving_warmup_requests`). All signatures
        with inputs of these names are checked.
      tags: the tags of the graph to convert, where `source` has several, as
        "serve"; None: it has one.
      live: whether the served model takes changed rows, by one more signature,
        `tfembed_update`: `tfembed.export.changed` makes its inputs.

    Returns:
      The tables and what was left out; `print` it.

    Raises:
      tfembed.errors.UnsupportedError: a signature has an op without a form in
        TensorFlow's ops from 2.13 on, because it trains, counts or runs Python
        for instance; the text names it. Or the outputs for `check` differ by more than rounding,
        where `rows` is "as_trained".
      tfembed.errors.CheckpointError: `source` is no SavedModel, or damaged.
      tfembed.errors.ArgumentError: `target` is there already or cannot be
        written, `source` has no table of tfembed, no graph has `tags`, or no
        signature has the inputs of `check`. A row has no form in `rows`, as NaN in "int8", or is
        off by more than `most_error`.
      tfembed.errors.DtypeError: `check` has another dtype than the signature,
        or `rows` is for floats and a table has none.

    Example:
      model.export("served")
      print(tfembed.export.to_stock("served", "ranker/1", check={"ids": [7]}))
    """
    source, parent = pathlib.Path(source), pathlib.Path(target).parent
    if parent.exists():
        place_of(target, replaces=False)
    if rows not in FORMATS:
        raise errors.ArgumentError(
            f"`rows` must be one of {list(FORMATS)}; got {rows!r}."
        )
    given = None if check is None else read_inputs(check)
    if tags is not None:
        tags = [tags] if isinstance(tags, str) else list(tags)
    model = _Conversion(source, rows, tags, live=live)
    inputs = {} if given is None else fitting(given, model.signature_inputs)
    outputs: tuple[OutputReport, ...] = ()
    parent.mkdir(parents=True, exist_ok=True)
    with written_file(target, replaces=False) as folder:
        folder.mkdir()
        model.write(folder)
        for table in model.table_reports():
            if most_error is not None and table.largest_error > most_error:
                raise errors.ArgumentError(
                    f"Rows of table '{table.name}' as {rows!r} are off by up to "
                    f"{table.largest_error:.3g}, and `most_error` is "
                    f"{most_error:.3g}. Give a larger one, or other `rows`."
                )
        if inputs:
            outputs = compared(source, folder, inputs, tags)
            if rows == "as_trained":
                _check_equal(outputs)
            write_warm_up(folder, parent.resolve().name, inputs)
        written = _folder_bytes(folder)
    return Report(
        source=str(source),
        target=os.fspath(target),
        source_bytes=_folder_bytes(source),
        target_bytes=written,
        tables=model.table_reports(),
        left_out=model.left_out,
        outputs=outputs,
        updated_by=tuple(sorted(model.update_inputs.values())),
    )


def _check_equal(outputs: Iterable[OutputReport]) -> None:
    """Raises an error unless outputs are equal but for rounding.

    Dense layers may sum in another order in another graph.
    """
    for one in outputs:
        if one.difference > _MOST_ROUNDING * max(one.largest, 1):
            raise errors.UnsupportedError(
                f"Output '{one.output}' of signature '{one.signature}' differs "
                f"by {one.difference:.3g} from the source's, in numbers up to "
                f"{one.largest:.3g}. Where the model draws random numbers, give "
                "no `check`; else please report it."
            )


class _Conversion:
    """One SavedModel, checked, and then written in its new form.

    Args:
      source: the folder.
      rows: the form of the tables' rows.
      tags: the tags of the graph; None: the only one.
      live: whether the new model takes updates.

    Attributes:
      update_inputs: the inputs of the signature that takes updates, by the
        names of the tables' tensors; none of a model that is not live.
      left_out: the functions that the new model will not have, by their
        paths, each with the reason.
      signature_inputs: the inputs of each signature.

    Raises:
      As `to_stock`.
    """

    def __init__(
        self,
        source: pathlib.Path,
        rows: str,
        tags: list[str] | None,
        *,
        live: bool,
    ) -> None:
        self._source = source
        self._model = SavedModelGraph(source, tags)
        self._graph = self._model.meta.graph_def
        self._library = {
            f.signature.name: f for f in self._graph.library.function
        }
        self._origins = TableOrigins(self._library)
        self._create = {
            node.name: node for node in self._graph.node if node.op == _CREATE
        }
        if not self._create:
            raise errors.ArgumentError(
                f"'{source}' has no hash table of tfembed. TensorFlow alone "
                "serves it as it is, if it has no other op of tfembed."
            )
        known = {name: frozenset([name]) for name in self._create}
        self._origins.follow(self._graph.node, known)
        self._savers = SaverGraph(self._graph, known)
        self._shards = {**self._restored_shards(), **self._savers.shards}
        self._bind_functions()
        self._saved = self._saved_tables()
        self._missing = {
            prefix: self._initial_rows(shards[0], self._saved[prefix])
            for prefix, shards in self._shards.items()
        }
        self._edit = StockGraph(
            self._graph,
            known,
            self._origins,
            {
                shard: sealed_tensor(prefix)
                for prefix, shards in self._shards.items()
                for shard in shards
            },
        )
        self._check_signatures()
        self.signature_inputs = self._model.signature_inputs()
        self._kept, self.left_out = self._public_functions()
        self._formats = {
            prefix: _row_format(rows, table)
            for prefix, table in self._saved.items()
        }
        self._sealed: dict[str, SealedFile] = {}
        tensors = sorted(map(sealed_tensor, self._saved)) if live else []
        names = {
            sealed_tensor(prefix): table_name(table.name)
            for prefix, table in self._saved.items()
        }
        self.update_inputs = dict(
            zip(
                tensors,
                input_names(names[tensor] for tensor in tensors),
                strict=True,
            )
        )

    def write(self, folder: pathlib.Path) -> None:
        """Writes the new model into an empty folder."""
        variables = Variables(folder)
        tensors = {prefix: sealed_tensor(prefix) for prefix in self._saved}
        for prefix, table in self._saved.items():
            self._sealed[prefix] = seal(
                table,
                variables.next_file(),
                self._formats[prefix],
                fingerprints_of,
                self._missing[prefix],
                live=bool(self.update_inputs),
            )
            variables.add_sealed(tensors[prefix], self._sealed[prefix])
        handles, columns = self._savers.seal(tensors, CONVERTED)
        gone = self._edit.keep(self._kept)
        self._edit.convert(
            {
                tensor: self._stock_table(prefix)
                for prefix, tensor in tensors.items()
            }
        )
        if self.update_inputs:
            function = self._edit.add_update(self.update_inputs)
            self._model.add_update(self.update_inputs, function)
        if self._model.has_objects:
            self._model.seal_objects(gone)
        else:
            self._model.seal_collections(handles)
        self._model.write(folder)
        variables.copy(self._source, tensors, columns)
        variables.merge()
        for name in _ASSETS:
            if (self._source / name).is_dir():
                shutil.copytree(self._source / name, folder / name)

    def table_reports(self) -> tuple[TableReport, ...]:
        """Returns the reports of the tables that `write` wrote."""
        return tuple(
            TableReport(
                name=table_name(table.name),
                num_rows=sealed.layout.num_rows,
                key_dtype=table.key_dtype,
                row_bytes=sealed.layout.rows.row_bytes,
                num_bytes=sealed.layout.num_bytes,
                trained_row_bytes=tf.as_dtype(table.dtype).size * table.width,
                largest_error=sealed.error.largest,
                root_mean_square_error=sealed.error.root_mean_square,
            )
            for table, sealed in zip(
                self._saved.values(), self._sealed.values(), strict=True
            )
        )

    def _restored_shards(self) -> dict[str, list[str]]:
        """Returns the nodes that create each table's shards, in their order.

        The keys are the prefixes of the tables' tensors.
        """
        shards: dict[str, list[str]] = {}
        for prefix, handles, _ in self._restores():
            shards[prefix] = [min(tables) for tables in handles]
        return shards

    def _restores(self) -> Iterator[tuple[str, list[frozenset[str]], bool]]:
        """Yields each table that a function restores.

        That is the prefix of its tensors, the tables at each shard's handle,
        and whether the table keeps the seed that the graph gives.
        """
        for name, function in self._library.items():
            known = self._origins.of(name)
            for node in function.node_def:
                if node.op != _RESTORE or not known:
                    continue
                # Inputs that a node waits for alone come after the prefix.
                handles = [
                    known[given.split(":")[0]]
                    for given in node.input[: node.attr["N"].i]
                ]
                first = 0
                for prefix, count, keeps in zip(
                    node.attr["tensor_names"].list.s,
                    node.attr["shard_counts"].list.i,
                    node.attr["keep_seeds"].list.b,
                    strict=True,
                ):
                    shards = handles[first : first + count]
                    yield prefix.decode(), shards, keeps
                    first += count

    def _bind_functions(self) -> None:
        """Enters the tables that functions captured: their last arguments."""
        nodes = {
            number: node
            for path, numbers in self._model.shards().items()
            for number, node in zip(
                numbers,
                self._shards.get(f"{path}/.ATTRIBUTES", ()),
                strict=False,
            )
        }
        for name, bound in self._model.bound_inputs().items():
            if name not in self._library or not bound:
                continue
            arguments = self._library[name].signature.input_arg
            self._origins.enter(
                name,
                {
                    argument.name: frozenset([nodes[number]])
                    for argument, number in zip(
                        arguments[len(arguments) - len(bound) :],
                        bound,
                        strict=True,
                    )
                    if number in nodes
                },
            )

    def _saved_tables(self) -> dict[str, SavedTable]:
        """Returns the tables in the files, by the prefixes of tensors."""
        tables = {
            re.sub("[/-]keys$", "", table.columns["keys"].name): table
            for table in open_saved(self._source).values()
            if "keys" in table.columns
        }
        missing = [prefix for prefix in self._shards if prefix not in tables]
        if missing:
            raise errors.CheckpointError(
                f"'{self._source}' is damaged: its variables lack the tables "
                f"{missing}."
            )
        return {prefix: tables[prefix] for prefix in self._shards}

    def _initial_rows(self, shard: str, saved: SavedTable) -> InitialRows:
        attributes = self._create[shard].attr
        keeps_seed = any(
            keeps and any(shard in tables for tables in handles)
            for _, handles, keeps in self._restores()
        )
        seed = attributes["seed"].i
        if saved.seed is not None and not keeps_seed:
            seed = saved.seed
        # tf.saved_model.save leaves out attributes that have their default.
        kind = attributes["initializer"].s.decode() or "constant"
        texts = attributes["initializer_args"].list.s or [b"0"]
        arguments = [float(text) for text in texts]
        if attributes["missing_value"].list.f:
            kind = "constant"
            arguments = list(attributes["missing_value"].list.f)
        return InitialRows(
            kind=kind,
            arguments=arguments,
            seed=seed,
            dim=attributes["dim"].i,
            dtype=tf.as_dtype(saved.dtype),
        )

    def _check_signatures(self) -> None:
        for name, outputs in self._model.signature_outputs().items():
            obstacle = self._edit.obstacle_of(outputs)
            if obstacle:
                raise errors.UnsupportedError(
                    f"Signature '{name}' of '{self._source}' cannot run on "
                    f"TensorFlow's ops: it calls {obstacle}. Export a model "
                    "without this signature."
                )

    def _public_functions(self) -> tuple[set[str], dict[str, str]]:
        """Returns the functions to keep, and why others are left out."""
        left_out = {}
        obstacles = {
            name: self._edit.obstacle(name)
            for name in self._model.bound_inputs()
        }
        for path, functions in self._model.public_functions().items():
            reasons = [obstacles.get(name) for name in functions]
            if any(reasons):
                left_out[path] = next(r for r in reasons if r)
        kept = {name for name, reason in obstacles.items() if not reason}
        return kept, left_out

    def _stock_table(self, prefix: str) -> StockTable:
        saved, tensor = self._saved[prefix], sealed_tensor(prefix)
        layout = self._sealed[prefix].layout
        changes = ""
        if tensor in self.update_inputs:  # A name of this export alone.
            changes = f"{tensor}/changes/{layout.secret[0]}"
        return StockTable(
            name=table_name(saved.name),
            tensor=tensor,
            changes=changes,
            key_dtype=tf.as_dtype(saved.key_dtype),
            value_dtype=tf.as_dtype(saved.dtype),
            layout=layout,
            missing=self._missing[prefix],
        )


def _row_format(rows: str, table: SavedTable) -> RowFormat:
    try:
        return RowFormat(rows, table.dtype, table.width)
    except errors.DtypeError as error:
        raise errors.DtypeError(f"Table '{table.name}': {error}") from None


def _folder_bytes(folder: pathlib.Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files)
