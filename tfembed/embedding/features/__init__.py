"""Inputs as users have them, and the activations that come out."""
