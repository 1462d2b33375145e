"""Runs the tests of TPUEmbedding with both engines that need no TPU.

A test whose fact is not one of tables of a fixed size in device memory has the
mark `host_only`, with the reason.
"""

from __future__ import annotations

import pytest

import tfembed
from tfembed.ops import exchange

# Modules whose objects are made without naming an engine. Not those of what the
# xla engine refuses as a whole: users' combiners, several replicas, hash tables;
# nor of what only the host engine has: functions of eager calls.
MODULES = {
    "test_checkpoint",
    "test_created_slots",
    "test_errors",
    "test_packed_features",
    "test_pairing",
    "test_pipeline",
    "test_precision",
    "test_program_shapes",
    "test_quantization",
    "test_saved_functions",
    "test_serving",
    "test_bad_input",
    "test_tensorflow_calls",
    "test_enqueue",
    "test_tensorflow_errors",
    "test_gradient_trap",
    "test_lookups_and_tables",
    "test_update_rules",
    "test_serving_calls",
    "test_serving_checkpoints",
    "test_shapes_end_to_end",
    "test_strategies",
    "test_tpu_plumbing",
    "test_threads",
    "test_training",
    "test_unknown_batch_sizes",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.split(".")[-1] in MODULES:
        metafunc.parametrize(
            "default_engine",
            ["auto", pytest.param("xla", marks=pytest.mark.slow)],
            indirect=True,
        )


@pytest.fixture(autouse=True)
def default_engine(request, monkeypatch) -> str:
    """The engine of each TPUEmbedding that is made without naming one."""
    engine = getattr(request, "param", "auto")
    if engine == "xla":
        for mark in request.node.iter_markers("host_only"):
            pytest.skip(mark.kwargs["reason"])
        if exchange.why_missing():
            pytest.skip(exchange.why_missing())
    monkeypatch.setitem(
        tfembed.TPUEmbedding.__init__.__kwdefaults__, "engine", engine
    )
    return engine
