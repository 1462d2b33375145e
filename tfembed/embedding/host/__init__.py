"""Tables in host memory."""
