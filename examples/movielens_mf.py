"""Biased matrix factorisation on MovieLens, cross-validated.

    python examples/movielens_mf.py --data ml-100k.inter

reads RecBole's `.inter` or MovieLens' own `u.data`, trains on every part but one
and tests on that one, in turn, and prints the errors beside published ones.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from movielens.arguments import parser_of
from movielens.factorisation import Options, root_mean_square_error, train
from movielens.folds import folds

from tfembed.data import Ratings, SkippedLines, read_ratings
from tfembed.errors import DataError

DEFAULT_DATA = (
    pathlib.Path(__file__).parents[2] / "shared/data/ml-100k/ml-100k.inter"
)

# MovieLens 100K, 5-fold root-mean-square error, from the README of Surprise.
PUBLISHED = {
    "biases alone": 0.944,
    "SVD (biased matrix factorisation, 100 factors)": 0.934,
    "k nearest neighbours, with baselines": 0.931,
    "SVD++": 0.919,
}


def cross_validate(
    ratings: Ratings, options: Options, *, num_folds: int, seed: int
) -> list[float]:
    """The error of each fold; prints them as they come."""
    figures = []
    for fold, (training, test) in enumerate(folds(ratings, num_folds, seed)):
        start = time.monotonic()
        model = train(training, options, seed)
        figures.append(root_mean_square_error(model, test))
        print(
            f"fold {fold + 1} of {num_folds}: RMSE {figures[-1]:.4f}, "
            f"{int(model.users.size())} users, {int(model.items.size())} "
            f"items, {time.monotonic() - start:.1f} s",
            flush=True,
        )
    return figures


def table(figures: list[float]) -> str:
    """The mean error beside the published ones, best last."""
    ours = f"tfembed, mean of {len(figures)} folds"
    lines = {**PUBLISHED, ours: float(np.mean(figures))}
    width = max(map(len, lines))
    ranked = sorted(lines.items(), key=lambda line: -line[1])
    text = [f"  {name:<{width}}  {figure:.3f}" for name, figure in ranked]
    head = f"  {'root-mean-square error on MovieLens 100K':<{width}}"
    return "\n".join([head, *text])


def main(arguments: list[str] | None = None) -> int:
    """Runs the example; returns the exit status."""
    parser = parser_of(__doc__.splitlines()[0], DEFAULT_DATA, Options)
    parser.add_argument(
        "--folds", type=int, default=5, help="of the cross-validation"
    )
    parser.add_argument(
        "--skip_bad_lines",
        action="store_true",
        help="count lines that cannot be read, and go on",
    )
    given = parser.parse_args(arguments)
    if given.folds < 2:
        parser.error(f"--folds must be at least 2; got {given.folds}")
    skipped = SkippedLines() if given.skip_bad_lines else None
    try:
        ratings = read_ratings(given.data, skipped=skipped)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if skipped is not None and skipped.count:
        print(f"skipped {skipped.count} bad lines, the first of them:")
        print("\n".join(f"  {line}" for line in skipped.first))
    print(f"{len(ratings)} ratings from {given.data}")
    options = Options(dim=given.dim, epochs=given.epochs)
    start = time.monotonic()
    figures = cross_validate(
        ratings, options, num_folds=given.folds, seed=given.seed
    )
    print(f"\n{table(figures)}\n")
    print(f"{time.monotonic() - start:.1f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
