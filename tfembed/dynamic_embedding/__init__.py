"""Tables that grow with their keys, by TensorFlow Recommenders Addons' names.

import tfembed.dynamic_embedding as de
"""

import importlib as _importlib
import sys as _sys
from typing import Any as _Any

from tfembed.dynamic_embedding import (
    data_flow,
    math,
    ragged_embedding_ops,
    shadow_ops,
    train,
)
from tfembed.dynamic_embedding.lookups.lookup import (
    embedding_lookup,
    embedding_lookup_sparse,
    embedding_lookup_unique,
    safe_embedding_lookup_sparse,
)
from tfembed.dynamic_embedding.lookups.shadow_variable import (
    DistributedVariableWrapper,
    ModelMode,
    enable_inference_mode,
    enable_train_mode,
    get_model_mode,
)
from tfembed.dynamic_embedding.lookups.trainable import (
    TrainableWrapper,
    trainable_wrapper_filter,
)
from tfembed.dynamic_embedding.optimizer import (
    DynamicEmbeddingOptimizer,
    patch_on_tf,
    patch_on_tf_save_restore,
)
from tfembed.dynamic_embedding.shadow_ops import DEResourceVariable
from tfembed.dynamic_embedding.tensorflow1.graph_variables import GraphKeys
from tfembed.dynamic_embedding.tensorflow1.warm_start import (
    WarmStartHook,
    warm_start,
)
from tfembed.dynamic_embedding.training.slot_variable import (
    SlotVariable,
    create_slots,
)
from tfembed.dynamic_embedding.variables.arguments import (
    EmbeddingWeights,
    default_partition_fn,
    make_partition,
)
from tfembed.dynamic_embedding.variables.cuckoo_hash_table import (
    CuckooHashTable,
    CuckooHashTableConfig,
    CuckooHashTableCreator,
    HkvEvictStrategy,
    HkvHashTable,
    HkvHashTableConfig,
    HkvHashTableCreator,
    KVCreator,
    RedisTable,
    RedisTableConfig,
    RedisTableCreator,
)
from tfembed.dynamic_embedding.variables.restrict_policy import RestrictPolicy
from tfembed.dynamic_embedding.variables.restrict_status import (
    FrequencyRestrictPolicy,
    TimestampRestrictPolicy,
)
from tfembed.dynamic_embedding.variables.table_files import (
    DynamicEmbeddingSaver,
    FileSystemSaver,
    FileSystemSaverConfig,
)
from tfembed.dynamic_embedding.variables.variable import (
    Variable,
    load_de_variable_from_file_system,
)
from tfembed.dynamic_embedding.variables.variable_store import get_variable

__all__ = [
    "CuckooHashTable",
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "DEResourceVariable",
    "DistributedVariableWrapper",
    "DynamicEmbeddingOptimizer",
    "DynamicEmbeddingSaver",
    "EmbeddingWeights",
    "FileSystemSaver",
    "FileSystemSaverConfig",
    "FrequencyRestrictPolicy",
    "GraphKeys",
    "HkvEvictStrategy",
    "HkvHashTable",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
    "ModelMode",
    "RedisTable",
    "RedisTableConfig",
    "RedisTableCreator",
    "RestrictPolicy",
    "SlotVariable",
    "TimestampRestrictPolicy",
    "TrainableWrapper",
    "Variable",
    "WarmStartHook",
    "data_flow",
    "create_slots",
    "default_partition_fn",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "enable_inference_mode",
    "enable_train_mode",
    "get_model_mode",
    "get_variable",
    "keras",
    "load_de_variable_from_file_system",
    "make_partition",
    "math",
    "patch_on_tf",
    "patch_on_tf_save_restore",
    "ragged_embedding_ops",
    "safe_embedding_lookup_sparse",
    "shadow_ops",
    "train",
    "trainable_wrapper_filter",
    "warm_start",
]


def __getattr__(name: str) -> _Any:
    """Imports `keras` on first use."""
    if name != "keras":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _importlib.import_module(f"{__name__}.keras")


# Registers the Keras layers, so that Keras can load saved models that have
# them. TensorFlow has imported Keras 3 already, unless TF_USE_LEGACY_KERAS is
# set.
if "keras" in _sys.modules:
    _importlib.import_module(f"{__name__}.keras")
