"""A time limit for each test of estimators, which run threads and processes."""

from __future__ import annotations

import faulthandler
from collections.abc import Generator

import pytest
from _pytest import faulthandler as pytest_faulthandler

from tfembed.estimator.private import v1_sessions

LIMIT_SECS = 600  # A busy machine is ten times slower.


@pytest.fixture(autouse=True)
def _time_limit(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Ends the process of a test that hangs, with the stacks of its threads."""
    stderr = request.config.stash.get(
        pytest_faulthandler.fault_handler_stderr_fd_key, 2
    )
    faulthandler.dump_traceback_later(LIMIT_SECS, exit=True, file=stderr)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _few_texts_of_graphs(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spares models their graph.pbtxt, a tenth of what they take in tests."""
    if request.path.name != "test_hooks.py":  # Which looks at it.
        monkeypatch.setattr(
            v1_sessions.training_util, "write_graph", lambda *given: None
        )
