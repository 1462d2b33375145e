"""What the cells of the matrix are, and the page that says so.

`PYTHONPATH=.:tests python -m gradients.matrix` writes docs/gradients.md.
"""

from __future__ import annotations

import dataclasses
import pathlib

from gradients.tables import KINDS
from gradients.ways import WAYS

AT_REST = ("unconnected_gradients=ZERO, not connected",)
MODES = {
    "tf.gradients": ("function",),
    # TensorFlow's accumulators do not follow a function inside of another.
    "tf.autodiff.ForwardAccumulator around a tf.function": ("eager",),
}
# By column of the page, the kinds in it, which behave alike.
COLUMNS = {
    "`Variable`": (
        "embedding_lookup",
        "embedding_lookup_unique",
        "embedding_lookup_sparse",
        "safe_embedding_lookup_sparse",
        "ragged_embedding_ops",
    ),
    "string keys": ("string keys",),
    "`ShadowVariable`": ("ShadowVariable",),
    "`TrainableWrapper`": ("TrainableWrapper",),
    "`HashTable`": ("HashTable",),
    "`TPUEmbedding`": ("TPUEmbedding",),
    "`TPUEmbeddingV0`": ("TPUEmbeddingV0",),
    "V0, growing": ("TPUEmbeddingV0, growing",),
    "Keras `Embedding`": (
        "Keras Embedding, weight",
        "Keras Embedding, shadow",
        "Keras Embedding, params",
    ),
    "`Distributed­Embedding`": ("DistributedEmbedding",),
}


@dataclasses.dataclass(frozen=True)
class Refusal:
    """An error, and what it says to do.

    Attributes:
      letter: of the page.
      match: what its text has in it.
      advice: what the page says.
    """

    letter: str
    match: str
    advice: str
