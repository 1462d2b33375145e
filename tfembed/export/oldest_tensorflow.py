"""Holds the nodes of a graph against TensorFlow 2.13, the oldest that serves it.

The tables have all that TensorFlow 2.16 to 2.21 have and 2.13 has not, by a
comparison of the versions' own lists of ops. A test makes the list of 2.13 of
these tables and the installed TensorFlow, so that no other version is taken
for known.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

__all__ = [
    "OLDEST",
    "drop_hints",
    "lost_dtypes",
    "newer_attributes",
    "obstacle_of_node",
]

OLDEST = "2.13"

# Ops, by the first of the compared versions that has them.
_OPS = {
    "2.16": """
    ComputeDedupDataSize Conv ConvertToCooTensor CopyToMesh CopyToMeshGrad
    CustomAggregator DatasetFingerprint DumpTensor
    DynamicEnqueueTPUEmbeddingRaggedTensorBatch FFTND GlobalIterId IFFTND
    IRFFTND ListSnapshotChunksDataset RFFTND RelayoutLike
    SparseSegmentMeanGradV2 SparseSegmentSqrtNGradV2 SparseSegmentSumGradV2
    TFRecordDatasetV2 TPUAnnotateTensorsWithDynamicShape
    TPUCopyWithDynamicShape
    """,
    "2.20": """
    CalibrationStatisticsSaver CheckPinned ComputeDedupDataSizeV2
    ComputeDedupDataTupleMaskV2 DecodeWebP FinalizeTPUEmbeddingV2
    GetTpuTaskId GlobalShuffleDataset IndexFlatMapDataset
    IteratorGetModelProto TPUDummyInput UpdateTaskIdAndGlobalCoreArray
    WeightedFlatMapDataset
    """,
    "2.21": "DecodeJxl",
}
_VERSION_OF = {op: v for v, ops in _OPS.items() for op in ops.split()}

# Ops for the sparse cores of TPUs; 2.13 has none.
_OF_SPARSE_CORES = re.compile(
    "XlaSparse|Xla(Recv|Send)TPU.*V2$|.*SparseCore|.*Minibatch"
)

# Attributes that do not change what an op computes: they are left out.
_HINTS = {
    "BatchFunction": "batch_padding_policy low_priority_allowed_batch_sizes "
    "low_priority_batch_timeout_micros low_priority_max_batch_size "
    "low_priority_max_enqueued_batches mixed_priority_policy",
    "BatchMatMul": "grad_x grad_y",
    "BatchMatMulV2": "grad_x grad_y",
    "BatchMatMulV3": "grad_x grad_y",
    "CollectiveAllToAllV2": "is_stateless",
    "CollectiveGatherV2": "is_stateless",
    "CollectiveReduceScatterV2": "is_stateless",
    "CollectiveReduceV2": "is_stateless",
    "ExperimentalMapDataset": "force_synchronous",
    "MapDataset": "force_synchronous",
    "MatMul": "grad_a grad_b",
    "ParallelMapDatasetV2": "use_unbounded_threadpool",
    "SparseSegmentMean": "sparse_gradient",
    "SparseSegmentMeanWithNumSegments": "sparse_gradient",
    "SparseSegmentSqrtN": "sparse_gradient",
    "SparseSegmentSqrtNWithNumSegments": "sparse_gradient",
    "SparseSegmentSum": "sparse_gradient",
    "SparseSegmentSumWithNumSegments": "sparse_gradient",
    "TPUReplicateMetadata": "use_shardy_partitioner",
    "VarHandleOp": "debug_name",
}

_SCATTERS = """
    GatherNd ResourceScatterNdAdd ResourceScatterNdMax ResourceScatterNdMin
    ResourceScatterNdSub ResourceScatterNdUpdate ScatterNd ScatterNdAdd
    ScatterNdMax ScatterNdMin ScatterNdNonAliasingAdd ScatterNdSub
    ScatterNdUpdate TensorScatterAdd TensorScatterMax TensorScatterMin
    TensorScatterSub TensorScatterUpdate
    """

# Attributes that do, by op: they are left out where 2.13 does what they say.
_MEANINGS = {
    **dict.fromkeys(_SCATTERS.split(), "bad_indices_policy"),
    "ConcatOffset": "shape_type",
    "TensorListGetItem": "Tshape",
    "XlaCallModule": "disabled_checks function_list has_token_input_output "
    "use_shardy_partitioner",
}

# Values of an attribute that 2.13 does not take, by op.
_DTYPES = {
    ("FusedPadConv2D", "T"): ("bfloat16",),
    ("ImageProjectiveTransformV2", "dtype"): ("bfloat16",),
    ("ImageProjectiveTransformV3", "dtype"): ("bfloat16",),
    ("Range", "Tidx"): ("uint64",),
    ("StringToNumber", "out_type"): ("uint32", "uint64"),
    ("UniformDequantize", "Tin"): ("quint8",),
    ("UniformQuantize", "Tout"): ("quint8",),
    ("XlaRngBitGenerator", "dtype"): ("uint8", "int8"),
}

_PYTHON = ("EagerPyFunc", "PyFunc", "PyFuncStateless")


def obstacle_of_node(node: Any) -> str | None:
    """Returns why TensorFlow 2.13 does not run a node, or None.

    Args:
      node: a NodeDef with an op that is none of ours.
    """
    op = node.op
    if op in _PYTHON:
        return f"whose {op} '{node.name}' runs Python"
    if op in _VERSION_OF or _OF_SPARSE_CORES.match(op):
        since = _VERSION_OF.get(op, "2.16")
        return f"which has the op {op}, of TensorFlow {since}, not {OLDEST}"
    if not hasattr(tf.raw_ops, op) and not op.startswith("Xla"):
        return f"which has the op {op}, which TensorFlow alone does not have"
    for name in _MEANINGS.get(op, "").split():
        if name in node.attr and not _is_default(node.attr[name]):
            return (
                f"whose {op} '{node.name}' has `{name}`, which TensorFlow "
                f"{OLDEST} does not have"
            )
    for name, value in node.attr.items():
        dtypes = lost_dtypes(op, name)
        if dtypes and tf.as_dtype(value.type).name in dtypes:
            return (
                f"whose {op} '{node.name}' is of {tf.as_dtype(value.type).name}"
                f", which TensorFlow {OLDEST} does not have"
            )
    return None


def newer_attributes(op: str) -> list[str]:
    """Returns the attributes of an op that TensorFlow 2.13 does not have."""
    return f"{_HINTS.get(op, '')} {_MEANINGS.get(op, '')}".split()


def lost_dtypes(op: str, attribute: str) -> tuple[str, ...]:
    """Returns the dtypes that an attribute does not take in TensorFlow 2.13."""
    return _DTYPES.get((op, attribute), ())


def drop_hints(node: Any) -> None:
    """Removes attributes of a node that TensorFlow 2.13 does without."""
    for name in newer_attributes(node.op):
        node.attr.pop(name, None)


def _is_default(value: Any) -> bool:
    """Says whether an attribute is false, empty or int32: all defaults are."""
    kind = value.WhichOneof("value")
    if kind == "list":
        return not value.list.ListFields()
    if kind == "type":
        return bool(value.type == tf.int32.as_datatype_enum)
    return not getattr(value, kind)
