"""Looks into tables: those of files, and those of a program that runs.

The readers of files need NumPy alone, so that `tfembed inspect` starts at once:
importing this package, or a module of it that reads files, imports no TensorFlow.
"""
