"""The public names of other packages that this release does not have.

A program that imports such a name gets a class. The class raises when it is
made, and says what to use instead.
"""

from __future__ import annotations

from typing import Any

from tfembed import errors

__all__ = ["SENTENCES", "absent"]

_HKV = (
    "{name} is not in this release; rows are kept in host memory. Leave "
    "`kv_creator` None: a model on a GPU reads and trains such a variable, too. "
    "`restrict_policy` bounds it."
)
_REDIS = (
    "{name} is not in this release; rows are kept in host memory. Leave "
    "`kv_creator` None, and share rows between processes by "
    "`tf.train.Checkpoint` or `save_to_file_system`."
)
_SPARSE_CORE = (
    "{name} is for the SparseCores of TPUs (v5p, v6e), which are not used in "
    "this release. "
)

# By name: why the class is not there, and what to do instead.
SENTENCES = {
    "TPUEmbeddingV2": _SPARSE_CORE
    + "TPUEmbedding trains the same tables under any strategy, on such TPUs "
    "too, with enqueue, dequeue and apply_gradients in place of the call; "
    "TPUEmbeddingV0 has the call, for a tape. TPUEmbeddingForServing reads "
    "the checkpoints of TensorFlow's TPUEmbeddingV2.",
    "SparseCoreEmbeddingConfig": _SPARSE_CORE
    + "Leave it out: TPUEmbedding needs no bound on the ids of a table, and "
    "stacks tables by itself where that is faster.",
    "HkvHashTable": _HKV,
    "HkvHashTableConfig": _HKV,
    "HkvHashTableCreator": _HKV,
    "RedisTable": _REDIS,
    "RedisTableConfig": _REDIS,
    "RedisTableCreator": _REDIS,
    "HvdVariable": "{name} needs Horovod, which this release does not use. Look "
    "up through the ShadowVariable itself; its table may have several "
    "`devices`.",
    "HvdAllToAllEmbedding": "{name} (Horovod) is not in this release; use "
    "Embedding, whose table may have several `devices`.",
    "DEHvdBroadcastGlobalVariablesCallback": "{name} (Horovod) is not in this "
    "release; leave it out where one process trains.",
    "DEHvdSaver": "{name} needs Horovod, which this release does not use. Save "
    "with tf.compat.v1.train.Saver or tf.train.Checkpoint; for files of each "
    "process call `variable.save_to_file_system(dirpath, proc_size, "
    "proc_rank)`.",
    "DistributedVariableWrapper": "{name} is not in this release: dynamic "
    "variables do not run on several replicas. Use a ShadowVariable on one, or "
    "tfembed.TPUEmbedding under a strategy.",
}


def absent(name: str, module: str) -> type:
    """Makes the class that stands for a name in `SENTENCES`.

    Args:
      name: the class's name.
      module: the module that shows the class, its `__name__`.

    Returns:
      A class that raises `tfembed.errors.UnsupportedError` when it is made.
    """
    sentence = SENTENCES[name].format(name=name)

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise errors.UnsupportedError(sentence)

    members = {
        "__init__": refuse,
        "__doc__": "Not in this release: raises UnsupportedError.\n\n"
        + sentence,
        "__module__": module,
    }
    return type(name, (), members)
