"""Tables in a TPU's embedding engine, and beside a TPU."""
