"""The variable's rows in raw files, as TFRA's FileSystemSaver has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import checks, errors
from tfembed.checkpoint import row_files
from tfembed.checkpoint.row_files import FileStem
from tfembed.dynamic_embedding.files import folders, table_files
from tfembed.dynamic_embedding.files.table_files import BUFFER_SIZE
from tfembed.dynamic_embedding.variables.variable_rows import VariableRows

__all__ = ["VariableFiles", "load_de_variable_from_file_system"]


class VariableFiles(VariableRows):
    """Saving to and loading from raw files. Base of `Variable`."""

    def save_to_file_system(
        self,
        dirpath: Any,
        proc_size: int = 1,
        proc_rank: int = 0,
        file_name_list: Sequence[str] | None = None,
        dirpath_env: str | None = "TFRA_SAVED_KV",
        append_to_file: bool = False,
        buffer_size: int = BUFFER_SIZE,
        name: str | None = None,
    ) -> Any:
        """Writes keys and rows to files, a pair a shard.

        The files are `<name>_mht_<i>of<n>_rank<r>_size<s>-keys` and `-values`,
        raw little-endian arrays that TensorFlow Recommenders Addons loads too;
        slots are not in them. All rows are of one moment. What the files held
        before stays whole until the new ones are: docs/formats/row_files.md.

        Args:
          dirpath: the folder, a path or a string scalar; made if need be.
          proc_size: how many processes save rows of this variable, each its
            own ones, into the folder.
          proc_rank: which of them this is.
          file_name_list: a name for each shard's pair, in place of the above.
          dirpath_env: an environment variable that, where it is set, is the
            folder in place of `dirpath`.
          append_to_file: whether the rows go behind those that are there.
          buffer_size: rows to copy at a time; 16 MB at most in any case.
          name: of the op.

        Returns:
          The op in a graph, None in eager mode.

        Raises:
          tfembed.errors.ArgumentError: an argument that is not allowed.
          tfembed.errors.UnsupportedError: rows of strings.
          tf.errors.AlreadyExistsError: the files hold the rows of a table of
            another name, or of another variable of this name that lives and
            whose rows were not loaded into this one.
          tf.errors.OpError: the files cannot be written, or, to append to,
            cannot be read. They are as they were, unless the text says that
            the rows are saved, but may not be on the disk yet.
        """
        self._check_has_raw_form()
        stems: Sequence[Any] = file_name_list or []
        if file_name_list is None:
            stems = self._stems(proc_size, proc_rank)
        if len(stems) != self.shard_num:
            raise errors.ArgumentError(
                f"`file_name_list` must have a name for each of the "
                f"{self.shard_num} shards of '{self.name}'; got {list(stems)}."
            )
        return table_files.save(
            self.table,
            folders.folder(dirpath, dirpath_env),
            stems,
            append=append_to_file,
            buffer_size=buffer_size,
            name=name,
        )

    def load_from_file_system(
        self,
        dirpath: Any,
        proc_size: int = 1,
        proc_rank: int = 0,
        file_name_list: Sequence[str] | None = None,
        dirpath_env: str | None = "TFRA_SAVED_KV",
        load_entire_dir: bool = False,
        buffer_size: int = BUFFER_SIZE,
        name: str | None = None,
    ) -> Any:
        """Adds the rows of files to those that are there; the files' win.

        Each row goes to the shard that the partitioner says, whichever file it
        is in. All files are checked before the first row is written, and read
        before that, too, where they have 64 MB at most.

        Args:
          dirpath, proc_size, proc_rank, dirpath_env, name: as for
            `save_to_file_system`.
          file_name_list: the names of pairs, any number.
          load_entire_dir: whether to load all pairs of this variable's name
            in the folder, from any number of shards and processes. In a graph
            they are listed when the op is made.
          buffer_size: rows to read at a time; 16 MB at most in any case.

        Returns:
          The op in a graph, None in eager mode.

        Raises:
          tfembed.errors.ArgumentError: an argument that is not allowed.
          tfembed.errors.UnsupportedError: rows of strings.
          tf.errors.NotFoundError: a file is not there.
          tf.errors.InvalidArgumentError: saved with other dtypes or width.
          tf.errors.DataLossError: files that do not belong together, or are
            not what was saved.
        """
        self._check_has_raw_form()
        folder = folders.folder(dirpath, dirpath_env)
        stems: Sequence[Any]
        if file_name_list is not None:
            stems = list(file_name_list)
        elif load_entire_dir:
            stems = row_files.find_stems(folders.path(folder), self.name)
        else:
            stems = self._stems(proc_size, proc_rank)
        if not stems:
            raise errors.ArgumentError(
                "`file_name_list` must name at least one pair of files; got [] "
                f"for '{self.name}'."
            )
        return table_files.load(
            self.table, folder, stems, buffer_size=buffer_size, name=name
        )

    def load_from_file_system_with_restore_function(
        self,
        dirpath: Any,
        proc_size: int = 1,
        proc_rank: int = 0,
        buffer_size: int = BUFFER_SIZE,
    ) -> Any:
        """Adds the rows of one save, from any number of shards and processes.

        Where as many processes saved, each takes its own files; else a key
        goes to process `partitioner(key, proc_size)`. In a graph the files are
        listed when the op is made.

        Args:
          dirpath, proc_size, proc_rank, buffer_size: as for
            `load_from_file_system`. TFRA_SAVED_KV, where set, is the folder.

        Returns:
          The op in a graph, None in eager mode.

        Raises:
          As `load_from_file_system`; also
          tfembed.errors.CheckpointError: the folder holds several saves.
        """
        self._check_has_raw_form()
        self._stems(proc_size, proc_rank)
        folder = folders.folder(dirpath, "TFRA_SAVED_KV")
        path = folders.path(folder)
        stems = row_files.save_set(row_files.find_stems(path, self.name), path)
        is_own = stems[0].size == proc_size
        if is_own:
            stems = [stem for stem in stems if stem.rank == proc_rank]

        def is_for_rank(keys: tf.Tensor) -> tf.Tensor:
            return tf.equal(self.partition_fn(keys, proc_size), proc_rank)

        return table_files.load(
            self.table,
            folder,
            stems,
            buffer_size=buffer_size,
            select=None if is_own or proc_size == 1 else is_for_rank,
        )

    def _check_has_raw_form(self) -> None:
        if self.value_dtype == tf.string:
            raise errors.UnsupportedError(
                f"'{self.name}' has rows of strings, which raw files do not "
                "hold; save it with tf.train.Checkpoint."
            )

    def _stems(self, proc_size: int, proc_rank: int) -> list[FileStem]:
        size = checks.integer(proc_size, "proc_size", least=1)
        rank = checks.integer(proc_rank, "proc_rank", least=0)
        if rank >= size:
            raise errors.ArgumentError(
                f"`proc_rank` must be in [0, {size}), since `proc_size` is "
                f"{size}; got {rank}."
            )
        n = self.shard_num
        return [FileStem(self.name, n, size, rank, i) for i in range(n)]


def load_de_variable_from_file_system(
    de_variable: VariableFiles,
    dirpath: Any,
    proc_size: int = 1,
    proc_rank: int = 0,
    buffer_size: int = BUFFER_SIZE,
) -> Any:
    """`de_variable.load_from_file_system_with_restore_function(...)`."""
    return de_variable.load_from_file_system_with_restore_function(
        dirpath, proc_size, proc_rank, buffer_size
    )
