"""Places of keys: all distinct, whatever the keys are and however many."""

from __future__ import annotations

import numpy as np
import pytest

from tfembed import errors
from tfembed.export.perfect_hash import PerfectHash, mix

_MOST = 2**63 - 1


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [5],
        [-_MOST - 1, _MOST],
        range(1000),
        [i << 20 for i in range(3000)],
        [a << 48 | b for a in range(40) for b in range(50)],
    ],
    ids=["none", "one", "ends", "in order", "shifted", "fields"],
)
def test_each_key_has_a_place_of_its_own(keys):
    keys = np.array(keys, np.int64)
    found = PerfectHash.of(mix(keys))
    places = found.places_of(keys)

    assert len(np.unique(places)) == len(keys)
    assert ((places >= 0) & (places < found.num_places)).all()
    assert len(keys) >= 0.9 * found.num_places - 10


def test_keys_of_several_regions_lie_in_the_region_of_their_hash():
    keys = np.random.default_rng(0).integers(-_MOST, _MOST, 70_000)
    found = PerfectHash.of(mix(keys))
    places = found.places_of(keys)

    assert found.regions == 2
    assert len(np.unique(places)) == len(keys)
    in_second = mix(keys) >> np.uint64(63) == 1
    np.testing.assert_array_equal(places >= found.places, in_second)


def test_equal_keys_are_refused():
    with pytest.raises(errors.ArgumentError, match="2 keys must be distinct"):
        PerfectHash.of(mix(np.array([7, 7], np.int64)))
