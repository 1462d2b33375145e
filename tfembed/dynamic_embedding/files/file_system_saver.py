"""TFRA's savers of a `KVCreator`: here, checkpoints stream by themselves."""

from __future__ import annotations

import dataclasses

from tfembed import errors

__all__ = ["DynamicEmbeddingSaver", "FileSystemSaver", "FileSystemSaverConfig"]


class DynamicEmbeddingSaver:
    """What a `KVCreator` takes as its `saver`."""


@dataclasses.dataclass(frozen=True)
class FileSystemSaverConfig:
    """The arguments of a `FileSystemSaver`."""

    proc_size: int | None = None
    proc_rank: int | None = None
    save_path: str | None = None
    buffer_size: int = 4096


class FileSystemSaver(DynamicEmbeddingSaver):
    """Accepted so that programs written for TFRA run; it changes nothing.

    TFRA's writes tables beside a checkpoint, since its checkpoints take a copy
    of them in memory and do not restore into another number of shards.
    tfembed's stream, restore into any number and are committed as a whole, so
    tables are in them. For TFRA's files call `Variable.save_to_file_system`.

    Args:
      proc_size: None or 1.
      proc_rank: None or 0.
      save_path: None.
      buffer_size: not used.

    Raises:
      tfembed.errors.UnsupportedError: files of several processes, or in a place
        of their own.
    """

    def __init__(
        self,
        proc_size: int | None = None,
        proc_rank: int | None = None,
        save_path: str | None = None,
        buffer_size: int = 4096,
    ) -> None:
        self.config = FileSystemSaverConfig(
            proc_size, proc_rank, save_path, buffer_size
        )
        is_plain = proc_size in (None, 1) and proc_rank in (None, 0)
        if not is_plain or save_path is not None:
            raise errors.UnsupportedError(
                f"{self.config} asks for files of {proc_size} processes in "
                f"{save_path!r}; checkpoints hold the tables of their own "
                "process. Call `variable.save_to_file_system(dirpath, "
                "proc_size, proc_rank)` for such files."
            )
