"""The command `tfembed inspect` and its reports, on tables in files.

It needs NumPy alone, so that the command starts at once: nothing here imports
TensorFlow.
"""
