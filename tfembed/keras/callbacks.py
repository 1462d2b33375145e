"""Callbacks for `fit` of models with tables."""

from tfembed.monitoring.table_monitor import TableMonitor

__all__ = ["TableMonitor"]
