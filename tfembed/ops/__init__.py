"""The ops library and its thin wrappers; nothing else loads a shared object.

The library is loaded here, so that saved models that use its ops can be loaded
once tfembed is imported.
"""

from __future__ import annotations

from tfembed.ops import library as _library

_library.load()

from tfembed.ops import table  # noqa: E402 - a missing library is explained first
from tfembed.ops.gradients import record_access, trainable_rows  # noqa: E402
from tfembed.ops.grouped import (  # noqa: E402
    FeatureIds,
    FeaturePlan,
    feature_ids,
    grouped_lookup,
    grouped_lookup_gradient,
    grouped_update,
)
from tfembed.ops.library import on_host  # noqa: E402

__all__ = [
    "FeatureIds",
    "FeaturePlan",
    "feature_ids",
    "grouped_lookup",
    "grouped_lookup_gradient",
    "grouped_update",
    "on_host",
    "record_access",
    "table",
    "trainable_rows",
]
