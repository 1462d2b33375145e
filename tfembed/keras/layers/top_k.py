"""A Keras layer that finds the best items of a table for each query.

Items are read in the order of their ids, a chunk at a time, and each chunk's
best are merged with the best so far. Memory is that of the ids and of one
chunk, and equal scores come in the same order whatever shards a table has.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfembed import checks, errors
from tfembed.dynamic_embedding.variables.variable import Variable
from tfembed.keras.layers.embedding import Embedding
from tfembed.tables.hash_table import HashTable

__all__ = ["TopK"]

_SIMILARITIES = ("dot", "cosine")


class TopK(keras.layers.Layer):
    """Finds the best `k` items of each query: [batch, dim] -> [batch, k] twice.

        top = tfembed.keras.layers.TopK(model.items, 10)
        ids, scores = top(user_rows, exclude=seen)

    The answer is exact. Of equal scores the smaller int64 id comes first;
    string ids come in an order of their hashes, the same in every process. The
    layer reads the table in each call, so it follows a table that trains, and
    `freeze` keeps the rows of one moment. It has no gradient.

    Args:
      items: an `Embedding` of this package that has a table, a HashTable, a
        `dynamic_embedding.Variable`, or a pair of ids [n] and rows [n, dim],
        which are kept as they are now. Ids are integers or strings.
      k: the number of items per query. A pair must have that many rows.
      similarity: "dot", or "cosine", by which a row of zeros scores 0.
      chunk: the number of items that are scored at once.
      index: None: every row is scored. There is no approximate search yet.
      **kwargs: arguments of keras.layers.Layer.

    Raises:
      tfembed.errors.ArgumentError: a value that is not allowed.
      tfembed.errors.DtypeError: ids or rows of another dtype.
      tfembed.errors.StateError: an `Embedding` that has no table yet.
      tfembed.errors.UnsupportedError: an `index`.
    """

    def __init__(
        self,
        items: Any,
        k: int,
        *,
        similarity: str = "dot",
        chunk: int = 65536,
        index: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"autocast": False, **kwargs})
        if index is not None:
            raise errors.UnsupportedError(
                f"There is no `index` but None, by which every row is scored; got "
                f"{index!r}. Give ids and rows of `table.export()` to an "
                "approximate index of your own."
            )
        self.k = checks.integer(k, "k", least=1)
        self.chunk = checks.integer(chunk, "chunk", least=1)
        if similarity not in _SIMILARITIES:
            raise errors.ArgumentError(
                f"`similarity` must be one of {list(_SIMILARITIES)}; got "
                f"{similarity!r}."
            )
        self.similarity = similarity
        self.supports_jit = False
        if isinstance(items, (tuple, list)) and len(items) == 2:
            self._items: Any = _KeptItems(*items, least=self.k)
        else:
            self._items = _TableItems(_table_of(items))
        self.built = True

    def freeze(self) -> TopK:
        """Returns a layer that has a copy of the ids and rows of this moment.

        Its SavedModel has the copy, and no table.

        Raises:
          tfembed.errors.ArgumentError: fewer than `k` rows.
        """
        return TopK(
            self._items.export(),
            self.k,
            similarity=self.similarity,
            chunk=self.chunk,
            name=self.name,
        )

    def __call__(self, queries: Any, exclude: Any = None) -> Any:
        """Returns the best items.

        Args:
          queries: floats [batch, dim].
          exclude: ids that are not among a query's items, [batch, n] or a
            tf.RaggedTensor or lists of ids; ids without a row mean nothing.

        Returns:
          ids: of the items' dtype, [batch, k], best first. Where fewer than k
            items are left, the rest is -1, or "" for strings.
          scores: float32, or float64 where rows are, [batch, k]; the rest is
            -inf.

        Raises:
          tfembed.errors.ArgumentError: shapes that do not fit.
          tfembed.errors.DtypeError: queries that are no floats, or ids of
            another dtype than the items'.
          tf.errors.InvalidArgumentError: a table without rows; NaN or infinity
            in queries or rows.
        """
        if not isinstance(queries, keras.KerasTensor):
            queries = tf.convert_to_tensor(queries)
        if not tf.as_dtype(queries.dtype).is_floating:
            raise errors.DtypeError(
                f"Queries of layer '{self.name}' must be floats; got "
                f"{tf.as_dtype(queries.dtype).name}."
            )
        shape = tf.TensorShape(queries.shape)
        if not shape.is_compatible_with([None, self._items.dim]):
            raise errors.ArgumentError(
                f"Queries of layer '{self.name}' must have the shape [batch, "
                f"{self._items.dim}], as its items' rows are; got {shape}."
            )
        if exclude is None:
            return super().__call__(queries)
        exclude = self._ids_to_exclude(exclude)
        rows = exclude.shape[0]
        if len(exclude.shape) != 2 or not shape[:1].is_compatible_with([rows]):
            raise errors.ArgumentError(
                f"`exclude` of layer '{self.name}' must have a row of ids per "
                f"query; got the shape {tuple(exclude.shape)} for queries of "
                f"{shape}."
            )
        return super().__call__(queries, exclude=exclude)

    def call(self, queries: Any, exclude: Any = None) -> Any:
        """Returns ids and scores, as `__call__` says."""
        dtype = self._items.score_dtype
        queries = tf.stop_gradient(tf.cast(queries, dtype))
        _require_finite(queries, f"Queries of layer '{self.name}'")
        if self.similarity == "cosine":
            queries = tf.math.l2_normalize(queries, 1)
        ids, numbers = self._items.in_order()
        batch, count = tf.shape(queries)[0], tf.size(ids)
        of_query, excluded = _places(exclude, ids, numbers, batch)
        none = tf.constant(dtype.as_numpy_dtype("-inf"))

        def merge(start: Any, scores: Any, places: Any) -> Any:
            stop = tf.minimum(start + self.chunk, count)
            rows, exists = self._items.read(ids, start, stop)
            if self.similarity == "cosine":
                rows = tf.math.l2_normalize(rows, 1)
            found = tf.matmul(queries, rows, transpose_b=True)
            found = tf.where(exists, found, none)
            is_here = (excluded >= start) & (excluded < stop)
            gone = tf.boolean_mask(
                tf.stack([of_query, excluded - start], 1), is_here
            )
            found = tf.tensor_scatter_nd_update(
                found, gone, tf.fill([tf.shape(gone)[0]], none)
            )
            best = tf.math.top_k(found, tf.minimum(self.k, stop - start))
            merged = tf.concat([scores, best.values], 1)
            places = tf.concat([places, best.indices + start], 1)
            top = tf.math.top_k(merged, self.k)
            return (
                stop,
                top.values,
                tf.gather(places, top.indices, batch_dims=1),
            )

        _, scores, places = tf.while_loop(
            lambda start, *_: start < count,
            merge,
            [
                tf.constant(0),
                tf.fill([batch, self.k], none),
                tf.zeros([batch, self.k], tf.int32),
            ],
            parallel_iterations=1,
        )
        rest = tf.constant("" if ids.dtype == tf.string else -1, ids.dtype)
        best_ids = tf.where(scores > none, tf.gather(ids, places), rest)
        return best_ids, scores

    def get_config(self) -> dict[str, Any]:
        """Refuses: Keras' files have no place for the items.

        Raises:
          tfembed.errors.UnsupportedError: always.
        """
        raise errors.UnsupportedError(
            f"Layer '{self.name}' reads the table of another layer, which "
            "Keras' files do not describe. Save the model that trains, and make "
            "TopK anew after loading it; or write a SavedModel: `export`."
        )

    def _ids_to_exclude(self, exclude: Any) -> Any:
        """Returns `exclude` as a tensor of the items' dtype."""
        if isinstance(exclude, (list, tuple)):
            exclude = tf.ragged.constant(exclude, ragged_rank=1)
        elif not isinstance(exclude, (keras.KerasTensor, tf.RaggedTensor)):
            exclude = tf.convert_to_tensor(exclude)
        given, wanted = tf.as_dtype(exclude.dtype), self._items.key_dtype
        if given != wanted and not (given.is_integer and wanted.is_integer):
            raise errors.DtypeError(
                f"`exclude` of layer '{self.name}' must be {wanted.name}, as "
                f"the items' ids are; got {given.name}."
            )
        return exclude


class _TableItems(tf.__internal__.tracking.AutoTrackable):
    """The items of a table, read in each call."""

    def __init__(self, table: HashTable) -> None:
        self.table = table
        self.dim, self.key_dtype = table.dim, table.key_dtype
        self.score_dtype = _score_dtype(table.value_dtype)
        self._words = f"rows of table '{table.name}'"

    def export(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns ids and rows of this moment."""
        return self.table.export()

    def in_order(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all ids, and the numbers that they are sorted by."""
        ids = self.table.keys()
        some = tf.debugging.Assert(
            tf.size(ids) > 0,
            [f"There are no {self._words}. Train it, or load it, first."],
        )
        with tf.control_dependencies([] if some is None else [some]):
            numbers = _numbers(ids)
        order = tf.argsort(numbers)
        return tf.gather(ids, order), tf.gather(numbers, order)

    def read(self, ids: Any, start: Any, stop: Any) -> Any:
        """Returns the rows of ids[start:stop], and which still exist."""
        rows, exists = self.table.lookup(ids[start:stop])
        _require_finite(rows, self._words.capitalize(), ids[start:stop])
        return tf.cast(rows, self.score_dtype), exists


class _KeptItems(tf.__internal__.tracking.AutoTrackable):
    """Ids and rows that do not change."""

    def __init__(self, ids: Any, rows: Any, *, least: int) -> None:
        ids, rows = tf.convert_to_tensor(ids), tf.convert_to_tensor(rows)
        if not (ids.dtype.is_integer or ids.dtype == tf.string):
            raise errors.DtypeError(
                f"Ids of items must be integers or strings; got {ids.dtype.name}."
            )
        self.score_dtype = _score_dtype(rows.dtype)
        if (
            ids.shape.rank != 1
            or rows.shape[:1] != ids.shape
            or (rows.shape.rank != 2)
        ):
            raise errors.ArgumentError(
                "Items must be ids [n] and rows [n, dim]; got the shapes "
                f"{ids.shape} and {rows.shape}."
            )
        if ids.dtype != tf.string:
            ids = tf.cast(ids, tf.int64)
        if ids.shape[0] < least:
            raise errors.ArgumentError(
                f"`k` is {least}, and there are {ids.shape[0]} items. Give more "
                "items, or a smaller `k`."
            )
        if tf.size(tf.unique(ids).y) != ids.shape[0]:
            raise errors.ArgumentError(
                "Ids of items must differ; some came more than once."
            )
        _require_finite(rows, "Rows of items", ids)
        numbers = _numbers(ids)
        order = tf.argsort(numbers)
        self.dim, self.key_dtype = rows.shape[1], ids.dtype
        self.ids, self.numbers, self.rows = (
            tf.Variable(tf.gather(part, order), trainable=False)
            for part in (ids, numbers, rows)
        )

    def export(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns ids and rows."""
        return self.ids.value(), self.rows.value()

    def in_order(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all ids, and the numbers that they are sorted by."""
        return self.ids.value(), self.numbers.value()

    def read(self, ids: Any, start: Any, stop: Any) -> Any:
        """Returns the rows from `start` to `stop`; all exist."""
        del ids
        return tf.cast(self.rows[start:stop], self.score_dtype), True


def _table_of(items: Any) -> HashTable:
    """Returns the table of `items`."""
    if isinstance(items, Embedding):
        (items,) = items._tables_by_name().values()
    if isinstance(items, Variable):
        items = items.table
    if isinstance(items, HashTable):
        return items
    raise errors.ArgumentError(
        "`items` must be a tfembed.keras.layers.Embedding, a HashTable (for a "
        "DistributedEmbedding: one of `get_embedding_tables()`), a "
        "dynamic_embedding.Variable, or a pair of ids and rows; got "
        f"{type(items).__name__}."
    )


def _score_dtype(rows: tf.DType) -> tf.DType:
    """Returns the dtype of scores: float32, or float64 of such rows."""
    if not rows.is_floating:
        raise errors.DtypeError(
            f"Rows of items must be floats; got {rows.name}."
        )
    return tf.float64 if rows == tf.float64 else tf.float32


def _numbers(ids: tf.Tensor) -> tf.Tensor:
    """Returns int64 numbers to sort ids by: ids, or hashes of strings."""
    if ids.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(ids, 2**63 - 1)
    return tf.cast(ids, tf.int64)


def _places(exclude: Any, ids: Any, numbers: Any, batch: Any) -> Any:
    """Returns (query, place among the items) of each excluded id, int32 [n]."""
    if exclude is None:
        return tf.zeros([0], tf.int32), tf.zeros([0], tf.int32)
    if isinstance(exclude, tf.Tensor):
        exclude = tf.RaggedTensor.from_tensor(exclude)
    tf.debugging.assert_equal(
        tf.cast(exclude.nrows(), tf.int32),
        batch,
        "`exclude` must have a row of ids per query.",
    )
    flat, of_query = exclude.values, tf.cast(exclude.value_rowids(), tf.int32)
    if flat.dtype != tf.string:
        flat = tf.cast(flat, ids.dtype)
    wanted = _numbers(flat)
    # Two strings of one hash lie beside each other: look at both.
    first = tf.searchsorted(numbers, wanted)
    last = tf.searchsorted(numbers, wanted, side="right") - 1
    places = tf.clip_by_value(
        tf.concat([first, last], 0), 0, tf.size(numbers) - 1
    )
    is_there = tf.equal(tf.gather(ids, places), tf.tile(flat, [2]))
    return (
        tf.boolean_mask(tf.tile(of_query, [2]), is_there),
        tf.boolean_mask(places, is_there),
    )


def _require_finite(rows: Any, what: str, ids: Any = None) -> None:
    """Refuses NaN and infinity, naming ids or the numbers of rows."""
    is_bad = tf.logical_not(tf.reduce_all(tf.math.is_finite(rows), 1))
    names = tf.range(tf.size(is_bad)) if ids is None else ids
    tf.debugging.Assert(
        tf.logical_not(tf.reduce_any(is_bad)),
        [
            f"{what} must be finite; these are not:",
            tf.boolean_mask(names, is_bad),
        ],
    )
