"""The descriptions of policies: what they refuse and what the core reads."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from tfembed import errors, policies

ROOT = pathlib.Path(__file__).resolve().parents[2]

ALL = {
    "bloom_admission": policies.BloomAdmission(3, capacity=1000),
    "count_admission": policies.CountAdmission(3),
    "least_frequent": policies.LeastFrequent(),
    "least_recent": policies.LeastRecent(),
    "smallest_norm": policies.SmallestNorm(),
}


@pytest.mark.parametrize("policy", ALL.values(), ids=ALL)
def test_a_policy_lies_beside_its_interface_on_both_floors(policy):
    interface = type(policy).__module__.rpartition(".")[2]
    header = ROOT / "cc" / "core" / "policies" / f"{interface}.h"
    name = policy.policy_text().split()[0]

    assert interface in ("admission", "eviction")
    assert f'// "{name}' in header.read_text()


@pytest.mark.parametrize("policy", ALL.values(), ids=ALL)
def test_policies_are_values(policy):
    again = dataclasses.replace(policy)

    assert policy == again
    assert hash(policy) == hash(again)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.seen = 1


def test_what_the_core_reads():
    bloom = policies.BloomAdmission(2, capacity=50, error_rate=0.25)

    assert policies.CountAdmission(7).policy_text() == "count seen=7"
    assert bloom.policy_text() == "bloom seen=2 capacity=50 error_rate=0.25"
    assert policies.LeastFrequent().policy_text() == "least_frequent"
    assert policies.LeastRecent().policy_text() == "least_recent seconds=0"
    seconds = policies.LeastRecent(clock="seconds")
    assert seconds.policy_text() == "least_recent seconds=1"
    assert policies.SmallestNorm().policy_text() == "smallest_norm"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: policies.CountAdmission(0), "`seen`"),
        (lambda: policies.CountAdmission(1.5), "`seen`"),
        (lambda: policies.CountAdmission(True), "`seen`"),
        (lambda: policies.CountAdmission(2**24 + 1), "at most 16777216"),
        (lambda: policies.CountAdmission(2, value="x"), "`value`"),
        (lambda: policies.CountAdmission(2, value=float("nan")), "`value`"),
        (lambda: policies.BloomAdmission(256, capacity=10), "at most 255"),
        (lambda: policies.BloomAdmission(2, capacity=0), "`capacity`"),
        (
            lambda: policies.BloomAdmission(2, capacity=9, error_rate=0.0),
            "`error_rate`",
        ),
        (lambda: policies.LeastRecent(clock="days"), "`clock`"),
        (lambda: policies.Expiry(-1, every=2), "`limit`"),
        (lambda: policies.Expiry(True, every=2), "`limit`"),
        (lambda: policies.Expiry(5, every=0), "`every`"),
    ],
)
def test_values_that_are_not_allowed_are_refused(make, text):
    with pytest.raises(errors.ArgumentError, match=text):
        make()
