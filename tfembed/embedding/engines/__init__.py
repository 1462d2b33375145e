"""The engines' interface, and the choice of one for each table."""
