"""What an engine is, and which one each table gets."""
