"""What holds in the long run."""
