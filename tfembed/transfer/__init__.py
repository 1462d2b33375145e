"""Copies rows of other programs, files and tables into tables."""
