"""Enqueue, dequeue and apply_gradients paired into steps."""
