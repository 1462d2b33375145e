"""Callbacks for `fit` of models with tables."""

from tfembed.inspection.table_monitor import TableMonitor

__all__ = ["TableMonitor"]
