"""Why a test of TPUEmbedding is not run with engine="xla", or not here."""

from __future__ import annotations

import pytest

from tfembed.ops import exchange

GROWS = pytest.mark.host_only(
    reason="tables without a vocabulary are in host memory"
)
REPLICAS = pytest.mark.host_only(
    reason="TensorFlow compiles each of a MirroredStrategy's replicas alone"
)
REFUSES = pytest.mark.host_only(
    reason="a compiled program cannot refuse a step before it changes anything"
)
TAPED = pytest.mark.host_only(reason="test_v0_xla.py has V0's xla engine")
NEEDS_XLA = pytest.mark.skipif(
    bool(exchange.why_missing()), reason=exchange.why_missing()
)
