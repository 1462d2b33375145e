"""The graph of a model_fn: its input, steps, strategies and Keras models."""
