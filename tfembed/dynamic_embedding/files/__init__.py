"""Raw row files, as TFRA writes and reads them, and warm starts."""
