"""This benchmark finds the bytes that a process never gives back."""
