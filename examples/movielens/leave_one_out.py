"""Implicit feedback with the last item of each user left out, for ranking.

As "Neural Collaborative Filtering" (He et al., 2017) does it: whatever a user
rated is a positive example; the last one is ranked among 99 items that the user
never rated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

NUM_CANDIDATES = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Interactions:
    """Users and items as numbers from 0 on.

    Attributes:
      users, items: int64 [n], the pairs that are trained.
      candidates: int64 [users, 100]; the first of a row is the item left out.
      item_ids: what the items are called in the data.
      seen: per user the items of the user.
    """

    users: np.ndarray
    items: np.ndarray
    candidates: np.ndarray
    item_ids: np.ndarray
    seen: list[np.ndarray]

    @property
    def num_users(self) -> int:
        """The number of users."""
        return len(self.candidates)

    @property
    def num_items(self) -> int:
        """The number of items."""
        return len(self.item_ids)


def leave_one_out(
    histories: dict[int, list[int]], seed: int = 0
) -> Interactions:
    """Splits what users rated, and draws the candidates.

    Args:
      histories: the items of each user, oldest first; at least two.
      seed: of the candidates.
    """
    item_ids = np.unique(np.concatenate([list(h) for h in histories.values()]))
    numbered = [np.searchsorted(item_ids, h) for h in histories.values()]
    rng = np.random.default_rng(seed)
    candidates = np.zeros([len(numbered), NUM_CANDIDATES], np.int64)
    for user, items in enumerate(numbered):
        others = np.setdiff1d(np.arange(len(item_ids)), items)
        candidates[user, 0] = items[-1]
        candidates[user, 1:] = rng.choice(
            others, NUM_CANDIDATES - 1, replace=len(others) < NUM_CANDIDATES
        )
    return Interactions(
        users=np.repeat(
            np.arange(len(numbered)), [len(items) - 1 for items in numbered]
        ),
        items=np.concatenate([items[:-1] for items in numbered]),
        candidates=candidates,
        item_ids=item_ids,
        seen=[np.unique(items) for items in numbered],
    )


def batches(
    data: Interactions, batch_size: int, negatives: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Users, items and labels [batch_size] without end, in a random order.

    Each pair comes with `negatives` items that are drawn anew in each pass. As in
    the paper's code an item that the user rated is drawn again.
    """
    rng = np.random.default_rng(seed)
    rated = np.zeros([data.num_users, data.num_items], bool)
    for user, items in enumerate(data.seen):
        rated[user, items] = True
    # The item left out is not known while the model is trained.
    rated[np.arange(data.num_users), data.candidates[:, 0]] = False
    rest = [np.zeros([0], np.int64)] * 2 + [np.zeros([0], np.float32)]
    while True:
        users = np.tile(data.users, 1 + negatives)
        drawn = rng.integers(data.num_items, size=len(data.users) * negatives)
        of_drawn = users[len(data.users) :]
        while (again := rated[of_drawn, drawn]).any():
            drawn[again] = rng.integers(data.num_items, size=again.sum())
        items = np.concatenate([data.items, drawn])
        labels = np.zeros([len(users)], np.float32)
        labels[: len(data.users)] = 1.0
        order = rng.permutation(len(users))
        epoch = [
            np.concatenate([left, column[order]])
            for left, column in zip(rest, (users, items, labels))
        ]
        whole = len(epoch[0]) // batch_size * batch_size
        for start in range(0, whole, batch_size):
            yield tuple(c[start : start + batch_size] for c in epoch)
        rest = [column[whole:] for column in epoch]


def hit_rate(scores: np.ndarray, shown: int) -> float:
    """How often the first of a row is among the `shown` best of the row.

    An item with the same score comes before it.
    """
    better = (scores[:, 1:] >= scores[:, :1]).sum(1)
    return float((better < shown).mean())


def drawn_histories(
    num_users: int = 300, num_items: int = 200, num_tastes: int = 8
) -> dict[int, list[int]]:
    """Synthetic users, each of whom likes the items of one taste in eight."""
    rng = np.random.default_rng(0)
    tastes = rng.integers(num_tastes, size=num_items)
    histories = {}
    for user in range(num_users):
        liked = np.where(tastes == user % num_tastes, 20.0, 1.0)
        histories[user] = rng.choice(
            num_items, 16, replace=False, p=liked / liked.sum()
        ).tolist()
    return histories
