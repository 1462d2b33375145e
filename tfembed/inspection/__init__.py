"""Looks into tables: how they are, and what policies would make of them."""
