"""Embedding tables of a TPUEstimator: EmbeddingConfigSpec, HostTables, TpuTables."""
