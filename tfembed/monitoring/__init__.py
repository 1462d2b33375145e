"""Looks into the tables of a running program: health, a monitor, dry runs."""
