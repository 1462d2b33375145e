"""Clusters of processes: which of them hold the rows of tables."""
