"""Wires: how a worker's messages reach the owners of rows, and come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

__all__ = ["PlacedWire"]


class PlacedWire:
    """Runs the ops of owners on the owners' devices, to which TensorFlow sends.

    Args:
      devices: the device of each owner.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = tuple(devices)

    @property
    def num_owners(self) -> int:
        """The number of owners."""
        return len(self._devices)

    def ask(
        self,
        messages: Sequence[tf.Tensor],
        serve: Callable[[int, list[tf.Tensor]], list[tf.Tensor]],
    ) -> list[tf.Tensor]:
        """Returns each owner's answer to this worker.

        Args:
          messages: the request for each owner.
          serve: a function of an owner and the requests of workers that have
            come to it, which returns its answers to them.
        """
        answers = []
        for owner, device in enumerate(self._devices):
            with tf.device(device):
                answers += serve(owner, [messages[owner]])
        return answers

    def tell(
        self,
        messages: Sequence[tf.Tensor],
        sums: Sequence[tf.Tensor],
        train: Callable[[int, list[tf.Tensor], list[tf.Tensor]], tf.Tensor],
    ) -> list[tf.Tensor]:
        """Lets each owner train; returns what `train` returned for each.

        Args:
          messages: the request for each owner.
          sums: the summed gradients for each owner.
          train: a function of an owner, and of the requests and the sums of
            workers that have come to it.
        """
        trained = []
        for owner, device in enumerate(self._devices):
            with tf.device(device):
                trained.append(train(owner, [messages[owner]], [sums[owner]]))
        return trained
