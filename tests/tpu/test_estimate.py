"""Estimates: what is refused, and what the compiler's answer becomes."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest
import tensorflow as tf

import tfembed
from embedding.marks import NEEDS_XLA
from tfembed import errors
from tfembed.tpu import Estimate, estimate
from tfembed.tpu.compiler import interconnect_bytes
from tfembed.tpu.estimate import Topology

ROOT = pathlib.Path(__file__).resolve().parents[2]
JAX = ROOT / ".venv-jax" / "bin" / "python"


def _features(size=1000, dim=128, **arguments):
    table = tfembed.TableConfig(size, dim, name="users", **arguments)
    return {"clicks": tfembed.FeatureConfig(table)}


def _estimate(features=None, optimizer=None, **arguments):
    arguments = {"topology": "v5p:2x2x1", "batch_size": 16, **arguments}
    return estimate(
        _features() if features is None else features,
        optimizer or tfembed.Adagrad(0.1),
        **arguments,
    )


@pytest.mark.parametrize(
    "name", ["v9z:2x2", "v5p", "v5p:", "v5p:2", "v5p:2x", "v5p:0x2", "2x2", ""]
)
def test_an_unknown_topology_is_refused_with_the_known_kinds(name):
    with pytest.raises(errors.ArgumentError, match=r"v4, v5e, v5p, v6e"):
        _estimate(topology=name)


def test_a_topology_has_chips_and_memory():
    topology = Topology("v5p:4x4x4")
    assert (topology.kind, topology.chips) == ("v5p", 64)
    assert topology.memory == 95 * 2**30


def test_tables_that_cannot_fit_are_refused_with_the_figures():
    with pytest.raises(
        errors.ArgumentError,
        match=r"256,000,000,000 bytes of each of the 4 .*17,179,869,184",
    ):
        _estimate(_features(10**9), topology="v5e:2x2")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": 0}, "batch_size.*at least 1"),
        ({"ids": 0}, "ids.*at least 1"),
        ({"ids": {"clicks": -1}}, r"ids\['clicks'\]"),
        ({"ids": {"likes": 1}}, r"likes.*clicks"),
    ],
)
def test_a_number_that_is_not_allowed_is_refused(arguments, text):
    with pytest.raises(errors.ArgumentError, match=text):
        _estimate(**arguments)


def test_a_table_that_grows_is_refused():
    with pytest.raises(errors.ArgumentError, match="'users'.*vocabulary_size"):
        _estimate(_features(None))


WRITES_STABLEHLO = not tf.__version__.startswith("2.16.")

needs_kernels = NEEDS_XLA


@needs_kernels
@pytest.mark.skipif(not WRITES_STABLEHLO, reason="writes no StableHLO")
def test_missing_wheels_are_named_with_the_way_to_get_them(tmp_path):
    # A Python that has no third-party packages at all.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(errors.UnsupportedError) as raised:
        _estimate(python=bare)
    for text in ("jax[tpu]==0.10.2", "libtpu==0.0.42.1", "pip install"):
        assert text in str(raised.value)


@needs_kernels
@pytest.mark.skipif(WRITES_STABLEHLO, reason="writes StableHLO")
def test_a_tensorflow_that_writes_no_stablehlo_is_named():
    with pytest.raises(
        errors.UnsupportedError, match=r"TensorFlow 2\.16.*2\.20"
    ):
        _estimate()


@needs_kernels
def test_a_python_that_is_not_there_is_refused():
    with pytest.raises(errors.ArgumentError, match="no_such_python"):
        _estimate(python="/no_such_python")


def test_an_estimate_is_a_table_and_json():
    one = Estimate(
        topology="v5e:4x4",
        chips=16,
        fits=True,
        bytes_per_chip=2_500_000_000,
        memory_per_chip=16 * 2**30,
        table_bytes_per_chip=2_000_000_000,
        interconnect_bytes=1_500_000,
        seconds=2.5e-4,
        not_estimated=2,
    )
    assert json.loads(one.to_json())["seconds"] == 2.5e-4
    lines = str(one).splitlines()
    assert lines[0].split() == ["topology", "v5e:4x4", "(16", "chips)"]
    assert "2.5 GB of 17.2 GB a chip" in str(one)
    assert "250 us" in str(one)
    assert "1.5 MB" in str(one)
    assert "2 parts" in str(one)


def test_the_bytes_of_collectives_are_counted():
    text = """
  %a = f32[4,96,32]{1,2,0:T(8,128)} all-to-all(%x), replica_groups={{0,1,2,3}}
  %b = s32[] all-reduce(%y), replica_groups={{0,1,2,3}}, to_apply=%sum
  %c = (f32[2,8], f32[8,8]) all-gather-start(%z), replica_groups=[1,4]<=[4]
  %d = f32[8,8] all-gather-done(%c)
"""
    expected = 4 * 96 * 32 * 4 * 3 / 4 + 4 * 2 * 3 / 4 + 8 * 8 * 4 * 3 / 4
    assert interconnect_bytes(text) == (expected, 3)


@needs_kernels
@pytest.mark.slow
@pytest.mark.skipif(not JAX.exists(), reason="no .venv-jax: make tpu-proof")
def test_the_compiler_says_what_a_step_takes():
    found = _estimate(python=JAX)
    assert found.fits
    # Rows and slots of a quarter of the table.
    assert found.table_bytes_per_chip == 250 * 128 * 4 * 2
    assert found.table_bytes_per_chip < found.bytes_per_chip
    assert 0 < found.seconds < 1e-2
    assert found.interconnect_bytes > 0


@needs_kernels
@pytest.mark.slow
@pytest.mark.skipif(not JAX.exists(), reason="no .venv-jax: make tpu-proof")
def test_a_shape_that_the_compiler_does_not_know_is_refused():
    with pytest.raises(errors.ArgumentError, match="v5p:3x5x7"):
        _estimate(topology="v5p:3x5x7", python=JAX)
