"""Runs the tests of TPUEmbedding with both engines that need no TPU.

What the xla engine refuses by design, tests of it skip with its own words.
"""

from __future__ import annotations

import re

import pytest

import tfembed
from tfembed import errors
from tfembed.ops import exchange

# The modules whose tests are of TPUEmbedding with tables of a fixed size.
MODULES = {
    "test_errors",
    "test_pairing",
    "test_precision",
    "test_spec_errors",
}
REFUSED = re.compile(
    "holds tables of a fixed size only|spreads tables over the replicas|"
    "nonfinite='refuse' stops a step|which engine='xla' does not compile"
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.split(".")[-1] in MODULES:
        metafunc.fixturenames.append("default_engine")
        metafunc.parametrize(
            "default_engine",
            ["auto", pytest.param("xla", marks=pytest.mark.slow)],
            indirect=True,
        )


@pytest.fixture
def default_engine(request, monkeypatch):
    """The engine of each TPUEmbedding that is made without naming one."""
    if request.param == "xla" and exchange.why_missing():
        pytest.skip(exchange.why_missing())
    monkeypatch.setitem(
        tfembed.TPUEmbedding.__init__.__kwdefaults__, "engine", request.param
    )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    try:
        return (yield)
    except (errors.ArgumentError, errors.UnsupportedError) as error:
        is_xla = "-xla" in pyfuncitem.name or "[xla" in pyfuncitem.name
        if is_xla and REFUSED.search(str(error)):
            pytest.skip(str(error))
        raise
