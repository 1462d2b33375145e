"""Saves a trainer, and finds where it was."""

from __future__ import annotations

import tensorflow as tf

from criteo.training import Trainer
from tfembed.checkpoint import verify
from tfembed.errors import CheckpointError


class Checkpoints:
    """The checkpoints of one training in a directory; the last two are kept.

    Each holds the dense part, both optimizers, the tables, the number of steps
    and the position in the data.
    """

    def __init__(
        self, trainer: Trainer, directory: str, *, fingerprint: str
    ) -> None:
        self._trainer = trainer
        self._fingerprint = fingerprint
        self._data = tf.Variable(fingerprint, trainable=False, name="data")
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(
                network=trainer.model.network,
                embedding=trainer.model.embedding,
                optimizer=trainer.optimizer,
                step=trainer.step,
                position=trainer.position,
                data=self._data,
            ),
            directory,
            max_to_keep=2,
            checkpoint_name="criteo_dlrm",
        )

    def restore(self) -> str | None:
        """Goes back to the last checkpoint; its path, or None without one.

        Raises:
          CheckpointError: it is damaged, or was trained on other data.
        """
        path = self._manager.latest_checkpoint
        if path is None:
            return None
        verify(path)
        self._trainer.model.embedding.build()
        self._manager.checkpoint.restore(path).assert_consumed()
        data = self._data.numpy().decode()
        if data != self._fingerprint:
            raise CheckpointError(
                f"{path} was trained on {data}; the data is now "
                f"{self._fingerprint}. Name the same data, --batch_size and "
                "--seed, or another --checkpoint_dir."
            )
        return path

    def save(self) -> str:
        """Saves; the path of the checkpoint.

        Raises:
          CheckpointError: it cannot be written. The one before is whole.
        """
        try:
            return self._manager.save(checkpoint_number=self._trainer.step)
        except tf.errors.OpError as error:
            raise CheckpointError(
                f"no checkpoint could be saved in {self._manager.directory}: "
                f"{error.message}. The last one that was is whole."
            ) from None
