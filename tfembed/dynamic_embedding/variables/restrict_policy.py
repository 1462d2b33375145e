"""The interface of the restrict policies of a `Variable`."""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import errors

__all__ = ["RestrictPolicy", "make_policy"]


class RestrictPolicy(tf.__internal__.tracking.Trackable, abc.ABC):
    """Follows the use of a variable's keys and removes the least wanted ones.

    A variable takes the class:
    `Variable(restrict_policy=TimestampRestrictPolicy)` makes an instance,
    `variable.restrict_policy`. The optimizer calls `apply_update` with every
    key that it updates; `variable.restrict` calls `apply_restriction`. Objects
    that a policy tracks (`_track_trackable`) are saved with its variable.

    Args:
      var: the `Variable` to follow.
    """

    def __init__(self, var: Any) -> None:
        self._variable = var
        self.var = var  # TFRA's name, which users' policies read.

    @property
    def variable(self) -> Any:
        """The variable that is followed."""
        return self._variable

    @property
    @abc.abstractmethod
    def status(self) -> Any:
        """A `Variable` of width 1 with the status of each key."""

    @abc.abstractmethod
    def apply_update(self, ids: Any) -> Any:
        """Notes that `ids` were used.

        Args:
          ids: keys of any shape; the variable need not hold them.

        Returns:
          The op in a graph, None in eager mode.
        """

    @abc.abstractmethod
    def apply_restriction(self, num_reserved: int, **kwargs: Any) -> Any:
        """Removes keys of the variable until `num_reserved` or fewer stay."""


def make_policy(policy: Any, variable: Any) -> RestrictPolicy | None:
    """Makes the policy of a new variable from its argument `restrict_policy`.

    Args:
      policy: None, a class of policies, or a `functools.partial` of one.
      variable: the variable, passed to the policy.

    Raises:
      tfembed.errors.DtypeError: another policy argument.
    """
    if policy is None:
        return None
    cls = policy.func if isinstance(policy, functools.partial) else policy
    if not inspect.isclass(cls) or not issubclass(cls, RestrictPolicy):
        raise errors.DtypeError(
            "`restrict_policy` must be a class derived from RestrictPolicy, or "
            f"None; got {policy!r}."
        )
    make: Callable[[Any], RestrictPolicy] = policy
    return make(variable)
