"""Two-tower retrieval on MovieLens: what does a user watch next?

    python examples/movielens_retrieval.py --data ml-100k.inter

trains on all but the last item of each user, serves the model from a checkpoint,
and prints how often the last item is among the ten shown, beside showing what is
popular.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from movielens.arguments import parser_of
from movielens.histories import split
from movielens.retrieval_server import RetrievalServer, hit_rate, save
from movielens.two_tower import Options, train

from tfembed.data import read_histories
from tfembed.errors import DataError

DEFAULT_DATA = (
    pathlib.Path(__file__).parents[2] / "shared/data/ml-100k/ml-100k.inter"
)
SHOWN = 10


def evaluate(
    histories: dict[int, list[int]], options: Options, seed: int
) -> dict[str, float]:
    """Hit rates of the last items: popularity's and the model's."""
    training, test = split(histories, options.length)
    items = np.unique(np.concatenate([list(h) for h in histories.values()]))
    seen = [histories[user][:-1] for user in test.users]
    popularity = np.bincount(
        np.searchsorted(items, training.items), minlength=len(items)
    ).astype(np.float32)
    model = train(training, options, seed)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = save(model, pathlib.Path(folder) / "model")
        server = RetrievalServer(checkpoint, options, items)
        scores = server.scores(test.users, test.histories, test.lengths).numpy()
    popular = np.tile(popularity, [len(test), 1])
    return {
        "what is popular": hit_rate(popular, test, items, seen, SHOWN),
        "two towers": hit_rate(scores, test, items, seen, SHOWN),
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs the example; returns the exit status."""
    parser = parser_of(__doc__.splitlines()[0], DEFAULT_DATA, Options)
    given = parser.parse_args(arguments)
    try:
        histories = read_histories(given.data)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(histories)} users from {given.data}")
    options = Options(dim=given.dim, epochs=given.epochs)
    figures = evaluate(histories, options, given.seed)
    print(f"\nthe next item is among the {SHOWN} shown:")
    for name, figure in figures.items():
        print(f"  {name:<16}  {figure:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
