"""A run of a graph: its sessions, checkpoints, signals, reports and ends."""
