"""Every format of MovieLens reads the same; planted ratings can be learned."""

from __future__ import annotations

import numpy as np
import pytest

import tfembed
from tfembed.errors import DataError

FORMATS = {
    "u.data": "1\t50\t5\t30\n2\t7\t3\t10\n1\t7\t4\t20\n",
    "ratings.dat": "1::50::5::30\n2::7::3::10\n1::7::4::20\n",
    "ratings.csv": (
        "userId,movieId,rating,timestamp\n1,50,5.0,30\n2,7,3.0,10\n1,7,4.0,20\n"
    ),
    "ml.inter": (
        "timestamp:float\tuser_id:token\titem_id:token\trating:float\n"
        "30\t1\t50\t5\n10\t2\t7\t3\n20\t1\t7\t4\n"
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_the_same(name, tmp_path):
    path = tmp_path / name
    path.write_text(FORMATS[name])

    ratings = tfembed.data.read_ratings(path)

    assert ratings.users.tolist() == [1, 2, 1]
    assert ratings.items.tolist() == [50, 7, 7]
    assert ratings.values.tolist() == [5.0, 3.0, 4.0]
    assert tfembed.data.read_histories(path) == {2: [7], 1: [7, 50]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1::x::5::30\n", "bad:1: item_id is 'x'; it must be an integer"),
        ("1::2::5::30\n1::2\n", "bad:2: too few fields: 2; a row has 4"),
        ("userId,rating\n1,5\n", "no column 'item_id'"),
    ],
)
def test_bad_lines_are_named(text, said, tmp_path):
    path = tmp_path / "bad"
    path.write_text(text)

    with pytest.raises(DataError, match=said):
        tfembed.data.read_ratings(path)


def test_planted_ratings_are_the_same_for_a_seed_and_can_be_learned():
    ratings = tfembed.data.planted_ratings(100, 50, 20_000, seed=1)
    again = tfembed.data.planted_ratings(100, 50, 20_000, seed=1)

    np.testing.assert_array_equal(ratings.items, again.items)
    assert set(np.unique(ratings.values)) == {1, 2, 3, 4, 5}
    # A rating follows from who rates what: pairs spread less than the whole.
    pairs = ratings.users * 10**9 + ratings.items
    _, place = np.unique(pairs, return_inverse=True)
    means = np.bincount(place, ratings.values) / np.bincount(place)
    spread = np.std(ratings.values - means[place])
    assert spread < 0.5 * np.std(ratings.values)
