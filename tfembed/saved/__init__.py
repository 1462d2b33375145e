"""Tables in files, read by NumPy alone: importing this room imports no TensorFlow.

`saved_tables.open_saved` opens what users name: a checkpoint, a SavedModel, raw
files or a file of Keras. `formats/` has one module for each layout of bytes.
"""
