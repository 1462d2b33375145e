"""Programs under a TPUStrategy on paper have the ops that they need."""

from __future__ import annotations

import pytest

from embedding.marks import NEEDS_XLA
from proof import traces, v0_traces
from tfembed.embedding.engines.choice import missing

WITHOUT = [
    pytest.mark.skipif(
        missing("xla") is not None, reason="no engine xla in this build"
    )
]
ENGINES = [
    "host",
    "tpu",
    pytest.param("xla", marks=WITHOUT),
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("hosts", [1, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_traces_what_it_should(engine, hosts, training):
    ops = traces.trace(engine, hosts, training=training)
    assert traces._CHECKS[engine](ops, training, hosts)


@NEEDS_XLA
@pytest.mark.parametrize("hosts", [1, 4])
def test_an_exchange_is_part_of_the_step(hosts):
    ops = traces.trace_exchange(hosts, training=True)
    assert traces._CHECKS["exchange"](ops, True, hosts)


@NEEDS_XLA
@pytest.mark.parametrize("training", [True, False])
def test_loops_of_v0_exchange_rows_in_the_step(training):
    operations = v0_traces.trace_v0(8, training=training)
    assert v0_traces.check_v0(operations, training, 8)
    with pytest.raises(AssertionError):
        v0_traces.check_v0(operations, not training, 8)
    with pytest.raises(AssertionError):
        v0_traces.check_v0(operations, training, 4)


def test_a_program_without_its_ops_is_noticed():
    ops = traces.trace("host", 1, training=False)
    with pytest.raises(AssertionError, match="0 updates"):
        traces._CHECKS["host"](ops, True, 1)
    with pytest.raises(KeyError):
        traces._CHECKS["tpu"](ops, True, 1)
