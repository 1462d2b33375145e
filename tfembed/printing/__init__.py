"""Text, tables of text and plots, as commands, reports and notebooks show them."""
