"""Rows of other programs, files and tables, brought into tables."""
