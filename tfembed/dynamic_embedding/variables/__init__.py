"""`Variable`, and its arguments, shards, policies and files."""
