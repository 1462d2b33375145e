"""Reading rows, so that gradients find their way back to the table."""
