"""`make bench-lookup`: lookups and training steps beside peers and the limit."""

TITLE = "26 features of 4,096 bags, mean combiner, 2 threads"
