"""Keras 3 layers over tables that grow with their ids.

import tfembed.dynamic_embedding as de

The import registers the layers and the optimizer, so that
`keras.saving.load_model` finds them.
"""

from tfembed.dynamic_embedding.keras import bare_table as _bare_table
from tfembed.dynamic_embedding.keras import callbacks, layers, models
from tfembed.dynamic_embedding.keras import optimizer as _optimizer  # noqa: F401 - registers it
from tfembed.ops import model_calls as _model_calls

_model_calls.watch(_bare_table)

__all__ = ["callbacks", "layers", "models"]
