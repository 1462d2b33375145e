"""Conversion of users' inputs to ids, and of rows to activations."""
