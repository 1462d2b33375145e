"""The lookups of layers, TPUEmbeddingV0 and TPUEmbeddingForServing."""
