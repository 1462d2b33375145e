"""Embedding tables of a TPUEstimator: EmbeddingConfigSpec and HostTables."""
