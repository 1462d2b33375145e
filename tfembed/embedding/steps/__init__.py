"""Queues that pair enqueue, dequeue and apply_gradients into steps."""
