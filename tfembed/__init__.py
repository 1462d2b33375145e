"""Large sparse embeddings for TensorFlow 2.

`TPUEmbedding` trains embedding tables under any strategy; a table has a fixed
vocabulary or grows with its ids. `tfembed.dynamic_embedding` has the same
tables under the names of TensorFlow Recommenders Addons. Importing tfembed
loads its ops, so that SavedModels that use them can be loaded.
"""

from __future__ import annotations

import importlib as _importlib
import sys as _sys

# `python -m tfembed` imports this package first. The command only reads files,
# so it runs and exits here, before TensorFlow takes seconds to import.
if (
    _sys.argv[:1] == ["-m"]
    and "-m" in _sys.orig_argv
    and _sys.orig_argv[_sys.orig_argv.index("-m") + 1] == "tfembed"
):
    raise SystemExit(_importlib.import_module("tfembed.__main__").main())

from tfembed import ops as _ops  # noqa: F401 - explains what is missing

# isort: split
from tfembed import (
    checkpoint,
    dynamic_embedding,
    errors,
    optimizers,
    policies,
    sysconfig,
)
from tfembed.config import (
    CustomCombiner,
    FeatureConfig,
    QuantizationConfig,
    RowIdInitializer,
    TableConfig,
)
from tfembed.embedding import (
    PackedFeatures,
    SparseCoreEmbeddingConfig,
    TableSize,
    TPUEmbedding,
    TPUEmbeddingForServing,
    TPUEmbeddingV0,
    TPUEmbeddingV2,
    pack_features,
    serving_embedding_lookup,
)
from tfembed.initializers import RowInitializer
from tfembed.optimizers import (
    FTRL,
    SGD,
    Adadelta,
    Adagrad,
    AdagradMomentum,
    Adam,
    CenteredRMSProp,
    CustomOptimizer,
    Lion,
    Momentum,
    ProximalAdagrad,
    RMSProp,
    RowWiseAdagrad,
    Yogi,
)
from tfembed.tables import HashTable

# Written by the build.
__version__: str = _importlib.import_module("tfembed._build_info").VERSION

__all__ = [
    "FTRL",
    "SGD",
    "Adadelta",
    "Adagrad",
    "AdagradMomentum",
    "Adam",
    "CenteredRMSProp",
    "CustomCombiner",
    "CustomOptimizer",
    "FeatureConfig",
    "HashTable",
    "Lion",
    "Momentum",
    "PackedFeatures",
    "ProximalAdagrad",
    "QuantizationConfig",
    "RMSProp",
    "RowIdInitializer",
    "RowInitializer",
    "RowWiseAdagrad",
    "SparseCoreEmbeddingConfig",
    "TPUEmbedding",
    "TPUEmbeddingForServing",
    "TPUEmbeddingV0",
    "TPUEmbeddingV2",
    "TableConfig",
    "TableSize",
    "Yogi",
    "__version__",
    "checkpoint",
    "dynamic_embedding",
    "errors",
    "optimizers",
    "pack_features",
    "policies",
    "serving_embedding_lookup",
    "sysconfig",
]


# Names that are imported on first use; `dir(tfembed)` lists them too.
_MODULES = ("data", "estimator", "export", "keras", "tpu")
_NAMES = {
    "WarmStart": "tfembed.transfer.warm_start",
    "health": "tfembed.monitoring.health",
    "simulate": "tfembed.monitoring.simulation",
    "warm_start": "tfembed.transfer.warm_start",
}


def __getattr__(name: str) -> object:
    """Imports packages and functions that few programs need, on first use."""
    if name in _MODULES:
        return _importlib.import_module(f"tfembed.{name}")
    if name in _NAMES:
        return getattr(_importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'tfembed' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_NAMES})


# Registers the Keras layers, so that Keras can load saved models that have
# them. TensorFlow has imported Keras 3 already, unless TF_USE_LEGACY_KERAS is
# set.
if "keras" in _sys.modules:
    _importlib.import_module("tfembed.keras")
