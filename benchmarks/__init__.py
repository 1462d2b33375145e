"""Measures tfembed beside its peers and the physical limit."""
