"""Hash tables in `tf.train.Checkpoint` and in SavedModels.

Importing this package registers them with TensorFlow's savers; docs/checkpoints.md
says what they write.
"""

from tfembed.checkpoint import held_variable as _held_variable
from tfembed.checkpoint import string_saver as _string_saver
from tfembed.checkpoint import table_saver as _table_saver
from tfembed.checkpoint.table_saver import tensor_prefix
from tfembed.checkpoint.verification import verify

__all__ = ["tensor_prefix", "verify"]

_string_saver.register()
_table_saver.register()
_held_variable.register()
