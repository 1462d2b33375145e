"""The table of a `Variable`: its arguments, shards, rows and stores."""
