"""Tables that grow with their keys, under TensorFlow Recommenders Addons' names.

import tfembed.dynamic_embedding as de
"""

from tfembed.dynamic_embedding.lookup import (
    embedding_lookup,
    embedding_lookup_unique,
)
from tfembed.dynamic_embedding.optimizer import DynamicEmbeddingOptimizer
from tfembed.dynamic_embedding.partition import (
    default_partition_fn,
    make_partition,
)
from tfembed.dynamic_embedding.safe_lookup import safe_embedding_lookup_sparse
from tfembed.dynamic_embedding.sparse_lookup import embedding_lookup_sparse
from tfembed.dynamic_embedding.trainable import TrainableWrapper
from tfembed.dynamic_embedding.variable import Variable
from tfembed.dynamic_embedding.variable_files import (
    load_de_variable_from_file_system,
)
from tfembed.dynamic_embedding.variable_store import get_variable

__all__ = [
    "DynamicEmbeddingOptimizer",
    "TrainableWrapper",
    "Variable",
    "default_partition_fn",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "get_variable",
    "load_de_variable_from_file_system",
    "make_partition",
    "safe_embedding_lookup_sparse",
]
