"""The area under the ROC curve, of a model and of a planted truth."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from criteo.click_model import ClickModel
from criteo.planted_source import EVALUATION_START, PlantedSource
from criteo.source import Source


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """P(a positive scores higher than a negative), ties by half.

    NaN if there are only positives or only negatives.
    """
    labels = np.ravel(labels).astype(np.float64)
    _, places, counts = np.unique(
        np.ravel(scores), return_inverse=True, return_counts=True
    )
    last_ranks = np.cumsum(counts)
    ranks = (last_ranks - (counts - 1) / 2)[places]
    positives = labels.sum()
    negatives = len(labels) - positives
    if not positives or not negatives:
        return float("nan")
    below = ranks @ labels - positives * (positives + 1) / 2
    return float(below / (positives * negatives))


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """AUC on held-out examples; `best` is the planted truth's, if there is one."""

    examples: int
    auc: float
    best: float | None

    @property
    def share_of_best(self) -> float | None:
        """Of the distance from 0.5 to the best."""
        if self.best is None:
            return None
        return (self.auc - 0.5) / (self.best - 0.5)


def evaluate(
    model: ClickModel, source: Source, *, most_examples: int
) -> Evaluation | None:
    """Scores held-out examples, about `most_examples`; None if there are none."""
    predict = tf.function(
        lambda integers, categories: model.probabilities(
            integers, tf.transpose(categories)
        ),
        reduce_retracing=True,
    )
    labels, scores = [], []
    count = 0
    for chunk in source.held_out():
        labels.append(chunk.labels.numpy())
        scores.append(predict(chunk.integers, chunk.categories).numpy())
        count += len(chunk.positions)
        if count >= most_examples:
            break
    if not count:
        return None
    all_labels = np.concatenate(labels)
    best = None
    if isinstance(source, PlantedSource):
        truth = source.stream.draw(EVALUATION_START, len(all_labels))
        best = auc(all_labels, truth.probabilities)
    return Evaluation(
        len(all_labels), auc(all_labels, np.concatenate(scores)), best
    )
