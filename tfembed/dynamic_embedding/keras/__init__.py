"""Keras 3 layers over tables that grow with their ids.

import tfembed.dynamic_embedding as de

The import registers the layers and the optimizer, so that
`keras.saving.load_model` finds them.
"""

from tfembed.dynamic_embedding.keras import callbacks, layers, models
from tfembed.dynamic_embedding.keras import optimizer as _optimizer  # noqa: F401 - registers it
from tfembed.dynamic_embedding.keras.bare_table import (
    keys_to_build_with as _keys_to_build_with,
)
from tfembed.dynamic_embedding.keras.bare_table import (
    note_lookup as _note_lookup,
)
from tfembed.dynamic_embedding.keras.bare_table import (
    note_read as _note_read,
)
from tfembed.dynamic_embedding.lookups.trainable import LISTENERS as _LISTENERS
from tfembed.dynamic_embedding.variables.arguments import (
    STAND_INS as _STAND_INS,
)
from tfembed.tables.sharded_table import READ_LISTENERS as _READ_LISTENERS

_STAND_INS.append(_keys_to_build_with)
_LISTENERS.append(_note_lookup)
_READ_LISTENERS.append(_note_read)

__all__ = ["callbacks", "layers", "models"]
