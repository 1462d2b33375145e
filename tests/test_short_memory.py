"""A machine that is short of memory is no flaky test.

Kind: a check that takes what other programs do for a fault of ours. Looked for
in: all random tests (one hook for all tests), the C++ tests (their memory is
told by ScopedAvailableMemory), test_memory_limit (a control group of its own).
"""

from __future__ import annotations

import hypothesis
import pytest
import tensorflow as tf
from hypothesis import strategies as st

import short_memory

_MESSAGE = (
    "A table needs 256 bytes more of memory, of which {} are available; 4194304"
    " of them are left to the program"
)


def _refused(available: int) -> tf.errors.ResourceExhaustedError:
    return tf.errors.ResourceExhaustedError(
        None, None, _MESSAGE.format(available)
    )


def test_a_refusal_that_hypothesis_calls_flaky_is_found():
    refused = [True]

    @hypothesis.settings(database=None, derandomize=True)
    @hypothesis.given(st.integers())
    def example(number):
        if refused:  # Another program gives its memory back meanwhile.
            refused.clear()
            raise _refused(1000)

    with pytest.raises(hypothesis.errors.Flaky) as caught:
        example()
    assert "needs 256 bytes" in short_memory.refusal(caught.value)


def test_what_is_refused_though_there_is_memory_is_a_fault():
    assert short_memory.refusal(_refused(1 << 30)) is None
    assert short_memory.refusal(AssertionError("wrong rows")) is None


def test_a_refusal_is_found_behind_the_error_that_a_test_raised():
    with pytest.raises(AssertionError) as caught:
        try:
            raise _refused(1000)
        except tf.errors.ResourceExhaustedError:
            raise AssertionError("the step failed") from None
    assert short_memory.refusal(caught.value) is not None


@pytest.fixture
def failing(request):
    """Fails as a test does, under the hook of all tests."""
    (conftest,) = (
        plugin
        for plugin in request.config.pluginmanager.get_plugins()
        if hasattr(plugin, "LOGICAL_CPUS")
    )

    def fail(error):
        hook = conftest.pytest_pyfunc_call()
        next(hook)
        hook.throw(error)

    return fail


def test_a_test_that_a_short_machine_refused_is_skipped(failing):
    with pytest.raises(pytest.skip.Exception, match="short of memory: A table"):
        failing(_refused(1000))


def test_a_test_that_fails_otherwise_fails(failing):
    for error in (_refused(1 << 30), AssertionError("wrong rows")):
        with pytest.raises(type(error)):
            failing(error)
