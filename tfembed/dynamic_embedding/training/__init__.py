"""Moving rows: fused rules, and the own updates of other optimizers."""
