"""SavedModels that need TensorFlow alone, or nothing: `to_stock`."""

from __future__ import annotations

from tfembed.export.changes import Changes, changed
from tfembed.export.check import OutputReport
from tfembed.export.report import Report, TableReport
from tfembed.export.sealed_model import (
    SealedModel,
    SealedModelTable,
    open_sealed,
)
from tfembed.export.stock_model import to_stock

__all__ = [
    "Changes",
    "OutputReport",
    "Report",
    "SealedModel",
    "SealedModelTable",
    "TableReport",
    "changed",
    "open_sealed",
    "to_stock",
]
