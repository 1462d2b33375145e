"""TFRA's `warm_start`, and what to do in its place."""

from __future__ import annotations

from typing import Any, NoReturn

from tfembed import errors

__all__ = ["WarmStartHook", "warm_start"]


def warm_start(
    ckpt_to_initialize_from: Any,
    vars_to_warm_start: Any = ".*",
    var_name_to_prev_var_name: Any = None,
) -> NoReturn:
    """Not in this release.

    Raises:
      tfembed.errors.UnsupportedError: always; it names the way out.
    """
    del vars_to_warm_start, var_name_to_prev_var_name
    raise errors.UnsupportedError(
        f"warm_start({ckpt_to_initialize_from!r}) is not in this release. "
        "Restore what is to be warm: `tf.train.Checkpoint(v=variable)"
        ".restore(path).expect_partial()`; in a graph of TensorFlow 1 "
        "`tf.compat.v1.train.Saver([variable.saveable]).restore(session, "
        "path)`; files of rows by `variable.load_from_file_system(dirpath)`."
    )


class WarmStartHook:
    """Not in this release: raises as `warm_start` does."""

    def __init__(
        self,
        ckpt_to_initialize_from: Any,
        vars_to_warm_start: Any = ".*",
        var_name_to_prev_var_name: Any = None,
    ) -> None:
        warm_start(
            ckpt_to_initialize_from,
            vars_to_warm_start,
            var_name_to_prev_var_name,
        )
