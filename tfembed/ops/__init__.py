"""The op libraries and their Python wrappers.

Only this package loads shared objects. It loads them at import, so that saved
models with these ops can be loaded after `import tfembed`, and before XLA
compiles anything.
"""

from __future__ import annotations

from tfembed.ops import library as _library

_library.load()
_library.load_xla()

from tfembed.ops import private as _private  # noqa: E402 - see above

_private.leave_unconverted("tfembed")

from tfembed.ops import exchange, request, step, table  # noqa: E402 - a missing library is explained first
from tfembed.ops.combiners import combine  # noqa: E402
from tfembed.ops.gradients import (  # noqa: E402
    check_forward_mode,
    packed_slices,
    record_access,
    stand_in_rows,
    tape_records,
    trainable_rows,
)
from tfembed.ops.grouped import (  # noqa: E402
    FeatureIds,
    FeaturePlan,
    feature_ids,
    flat_ids,
    grouped_lookup,
    grouped_lookup_gradient,
    grouped_update,
)
from tfembed.ops.ids import (  # noqa: E402
    ALIGNED,
    split_aligned,
    wide_ids,
)
from tfembed.ops.library import on_host  # noqa: E402

__all__ = [
    "ALIGNED",
    "FeatureIds",
    "FeaturePlan",
    "check_forward_mode",
    "combine",
    "exchange",
    "feature_ids",
    "flat_ids",
    "grouped_lookup",
    "grouped_lookup_gradient",
    "grouped_update",
    "on_host",
    "packed_slices",
    "record_access",
    "request",
    "split_aligned",
    "stand_in_rows",
    "step",
    "table",
    "tape_records",
    "trainable_rows",
    "wide_ids",
]
