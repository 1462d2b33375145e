"""Differentiable lookups of rows: their gradients reach the table."""
