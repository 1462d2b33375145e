"""Policies that cut a variable down to the keys in use."""
