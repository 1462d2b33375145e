"""Updates of rows: fused rules, and other optimizers' own updates."""
