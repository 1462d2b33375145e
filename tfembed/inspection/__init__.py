"""Reports on tables, both those in files and those of a running program.

The readers of files need NumPy alone, so that `tfembed inspect` starts at
once: importing this package, or one of its modules that read files, does not
import TensorFlow.
"""
