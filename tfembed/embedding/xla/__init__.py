"""Tables in device memory, by XLA kernels."""
