"""The private hooks of Keras 3 by which a model trains on a cluster.

Tried on Keras 3.12.4 and 3.15.1.
"""

from __future__ import annotations

import abc
from typing import Any

import keras

# Function -> the public API that would make it unnecessary.
ENDED_BY = {
    "ClusterHooks": "a Keras whose `fit` runs on clusters (keras#20585)",
}


class ClusterHooks(keras.Model):
    """A model that Keras asks for its first batch.

    Keras builds a model from values of all replicas, which it takes for
    tensors.
    """

    train_function: Any
    test_function: Any

    @property
    @abc.abstractmethod
    def cluster_strategy(self) -> Any:
        """The strategy under which the model was made."""

    @abc.abstractmethod
    def first_batch(self, data: Any) -> Any:
        """Returns a batch of this process's own from distributed data."""

    def _maybe_symbolic_build(
        self, iterator: Any = None, data_batch: Any = None
    ) -> None:
        if iterator is not None:
            data_batch = self.first_batch(iterator._distributed_dataset)
        with self.cluster_strategy.scope():
            self._symbolic_build(data_batch=data_batch)
