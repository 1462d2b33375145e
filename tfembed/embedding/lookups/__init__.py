"""Lookups of TPUEmbedding, V0 and serving: fused, direct, static, trained."""
