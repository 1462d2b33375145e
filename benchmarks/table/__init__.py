"""`make bench-table`: hash tables beside their peers and the limit."""
