"""Readers of training data for embeddings.

Public data sets: `criteo` (click logs), `read_ratings` and `read_histories`
(MovieLens); `planted_ratings` generates data. Your own files: `csv`, `parquet`
and `tfrecord` make tf.data.Datasets of ids, bags and numbers; `from_pandas` makes
them of data frames.
"""

from __future__ import annotations

from tfembed.data.criteo import criteo
from tfembed.data.frames import from_pandas
from tfembed.data.movielens import (
    Ratings,
    planted_ratings,
    read_histories,
    read_ratings,
)
from tfembed.data.tables import SkippedLines
from tfembed.data.tabular import Bag, csv, parquet, tfrecord

__all__ = [
    "Bag",
    "Ratings",
    "SkippedLines",
    "criteo",
    "csv",
    "from_pandas",
    "parquet",
    "planted_ratings",
    "read_histories",
    "read_ratings",
    "tfrecord",
]
