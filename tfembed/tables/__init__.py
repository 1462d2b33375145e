"""Tables without a fixed vocabulary."""

from tfembed.tables.hash_table import HashTable
from tfembed.tables.string_table import StringTable
from tfembed.tables.table_stats import TableStats

__all__ = ["HashTable", "StringTable", "TableStats"]
