"""Which batch a call is for, where a name's batches come in several forms.

A queue's batches have one form: what type each input has, and how many samples.
Programs that train with RaggedTensors and evaluate with Tensors, under one name,
have two, and so do those whose last batch is smaller. Each form
after the first is a step of its own to the engines, with a `FormName`. Which one a
dequeue or an apply_gradients is for is known from the calls before it: in eager
mode, or in the same function.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeAlias

import tensorflow as tf

from tfembed import errors

__all__ = ["FormName", "RecentNames", "StepForms", "StepName", "user_name"]


@dataclasses.dataclass(frozen=True)
class FormName:
    """The name of a step whose batches have not their name's first form.

    Attributes:
      name: the user's.
      form: 1 or more.
    """

    name: str | None
    form: int


StepName: TypeAlias = "str | FormName | None"


def user_name(name: StepName) -> str | None:
    """The user's name of a step."""
    return name.name if isinstance(name, FormName) else name


_NONE: collections.deque[int] = collections.deque()

_Key: TypeAlias = tuple[int, "str | None"]  # Replica and name.


class _Calls:
    """The calls that were made in eager mode, or in one function.

    Attributes:
      enqueued: the forms of batches that were not dequeued here, oldest first.
      dequeued: the form of the batch that was dequeued last.
    """

    def __init__(self) -> None:
        self.enqueued: dict[_Key, collections.deque[int]]
        self.enqueued = collections.defaultdict(collections.deque)
        self.dequeued: dict[_Key, int] = {}

    def forget(self, name: str) -> None:
        both: list[dict[_Key, Any]] = [self.enqueued, self.dequeued]
        for known in both:
            for key in [key for key in known if key[1] == name]:
                del known[key]


class StepForms:
    """The forms of each name's batches, and which one comes next.

    Args:
      most: batches of a name, replica and form that may wait.
      takes_several: whether a name may have several forms. If not, every batch
        counts as one of the first, and the engine says what does not fit.
    """

    def __init__(self, most: int, *, takes_several: bool) -> None:
        self._most = most
        self._takes_several = takes_several
        self._forms: dict[str | None, list[Hashable]] = {}
        self._eager = _Calls()
        self._traced: weakref.WeakKeyDictionary[Any, _Calls]
        self._traced = weakref.WeakKeyDictionary()

    @property
    def takes_several(self) -> bool:
        """Whether a name's batches may have several forms."""
        return self._takes_several

    def number_of(self, name: str | None, form: Hashable) -> int:
        """The number of a form among those of its name; a new one is noted."""
        forms = self._forms.setdefault(name, [])
        if form not in forms and (not forms or self._takes_several):
            forms.append(form)
        return forms.index(form) if form in forms else 0

    def step(self, name: str | None, number: int) -> StepName:
        """The engines' name of the steps of a name's form."""
        return FormName(name, number) if number else name

    def steps(self, name: str | None) -> list[StepName]:
        """The engines' names of the steps of all of a name's forms."""
        forms = max(1, len(self._forms.get(name, ())))
        return [self.step(name, number) for number in range(forms)]

    def forget(self, name: str) -> None:
        """Forgets a name, under which nothing is on its way."""
        self._forms.pop(name, None)
        self._eager.forget(name)

    def note_enqueued(
        self, name: str | None, replicas: Iterable[int], number: int
    ) -> None:
        """Notes that a batch of a form was enqueued here."""
        calls = self._calls()
        most = self._most * max(1, len(self._forms.get(name, ())))
        for replica in replicas:
            numbers = calls.enqueued[replica, name]
            numbers.append(number)
            if len(numbers) > most:
                # Batches that another function dequeued stay until they drop out.
                numbers.popleft()

    def dequeue(
        self,
        name: str | None,
        replica: int,
        waiting: Callable[[StepName], int],
    ) -> StepName:
        """The step whose batch a dequeue takes; `note_dequeued` follows.

        Args:
          name: the user's.
          replica: on which it is called.
          waiting: how many batches of a step wait now; asked eagerly.

        Raises:
          tfembed.errors.StateError: it cannot be known.
        """
        key = (replica, name)
        several = len(self._forms.get(name, ())) > 1
        if tf.executing_eagerly():
            enqueued, number = self._eager.enqueued[key], 0
            if several:
                number = self._oldest_waiting(name, enqueued, waiting)
            elif enqueued:
                enqueued.popleft()
        else:
            queues = (calls.enqueued[key] for calls in self._around())
            numbers = next((queue for queue in queues if queue), _NONE)
            if several and not numbers:
                raise _unknown("dequeue", "enqueue", name)
            number = numbers.popleft() if numbers else 0
        return self.step(name, number)

    def left(
        self, name: str | None, replica: int, step: StepName
    ) -> list[StepName]:
        """Another form's step that an eager dequeue of `step` leaves, if one.

        Its batch, if it is still there, must not wait for its gradients.
        """
        last = self._eager.dequeued.get((replica, name))
        if last is None or last == _number(step) or not tf.executing_eagerly():
            return []
        return [self.step(name, last)]

    def note_dequeued(
        self, name: str | None, replica: int, step: StepName
    ) -> None:
        """Notes whose batch was dequeued here: the next gradients are its."""
        self._calls().dequeued[replica, name] = _number(step)

    def put_back(self, name: str | None, replica: int, step: StepName) -> None:
        """Notes that a dequeue failed, which may have left the batch there."""
        self._calls().enqueued[replica, name].appendleft(_number(step))

    def apply(self, name: str | None, replica: int) -> StepName:
        """The step whose batch an apply_gradients is for.

        Raises:
          tfembed.errors.StateError: it cannot be known.
        """
        if len(self._forms.get(name, ())) < 2:
            return name
        for calls in self._around():
            if (replica, name) in calls.dequeued:
                return self.step(name, calls.dequeued[replica, name])
        raise _unknown("apply_gradients", "dequeue", name)

    def clear(self) -> None:
        """Forgets all batches on their way."""
        self._eager = _Calls()

    def _calls(self) -> _Calls:
        if tf.executing_eagerly():
            return self._eager
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._traced:
            self._traced[graph] = _Calls()
        return self._traced[graph]

    def _around(self) -> Iterator[_Calls]:
        """The calls made here, then in the functions around this one."""
        yield self._calls()
        if tf.executing_eagerly():
            return
        graph: Any = tf.compat.v1.get_default_graph()
        while (graph := getattr(graph, "outer_graph", None)) is not None:
            if graph in self._traced:
                yield self._traced[graph]

    def _oldest_waiting(
        self,
        name: str | None,
        enqueued: collections.deque[int],
        waiting: Callable[[StepName], int],
    ) -> int:
        """The form of the next batch in eager mode; the first if none waits."""
        numbers = range(len(self._forms[name]))
        counts = {
            number: waiting(self.step(name, number)) for number in numbers
        }
        forms = [number for number in numbers if counts[number]]
        # The last batches of each form wait; functions took those before them.
        known: collections.deque[int] = collections.deque()
        for number in reversed(enqueued):
            if counts[number]:
                counts[number] -= 1
                known.appendleft(number)
        # The others were enqueued by functions, nobody knows when.
        is_known = not any(counts.values())
        if len(forms) > 1 and not is_known:
            raise _unknown("dequeue", "enqueue", name)
        oldest = known.popleft() if known and is_known else None
        enqueued.clear()
        enqueued.extend(known)
        if oldest is not None:
            return oldest
        return forms[0] if forms else 0


def _number(step: StepName) -> int:
    """The number of a step's form."""
    return step.form if isinstance(step, FormName) else 0


def _unknown(call: str, before: str, name: str | None) -> errors.StateError:
    label = "without a name" if name is None else f"under the name {name!r}"
    return errors.StateError(
        f"{call} cannot know which batch it is for: inputs of several types or "
        f"sizes were enqueued {label}. Call {before} in the same function, or give "
        "the steps of each type their own `name`."
    )


# The names of steps, the least recently used first: which to forget.
#
# A layer that gives each of its steps a new name, as TensorFlow's may, would leave
# a queue behind with each, for ever, and where steps are pipelined two of
# TensorFlow's, which keeps what it made for every queue even when that is gone: so
# those of old names serve new ones.

_MOST = 64

_LOOKED_AT = 2  # Old names, for each new one: those that stay cost little.


_NOTHING = contextlib.nullcontext()


class RecentNames:
    """The names that calls used, and those that calls use now.

    Args:
      forget: forgets what is kept for a name, or returns False where something
        is on its way under it, or a function may use it. Called eagerly, while no
        call uses the name.
    """

    def __init__(self, forget: Callable[[str], bool]) -> None:
        self._forget = forget
        self._users: dict[str, int] = {}  # Calls that run now.
        self._lock = threading.Lock()

    def using(
        self, name: str | None
    ) -> contextlib.AbstractContextManager[None]:
        """Keeps a name while a call uses it; may forget others before."""
        # No name is one that is always there.
        return _NOTHING if name is None else self._using(name)

    @contextlib.contextmanager
    def _using(self, name: str) -> Iterator[None]:
        with self._lock:
            is_new = name not in self._users
            self._users[name] = self._users.pop(name, 0) + 1
            if is_new and tf.executing_eagerly():
                self._forget_old()
        try:
            yield
        finally:
            with self._lock:
                self._users[name] -= 1

    def _forget_old(self) -> None:
        for _ in range(_LOOKED_AT):
            if len(self._users) <= _MOST:
                return
            oldest = next(iter(self._users))
            users = self._users.pop(oldest)
            if users or not self._forget(oldest):
                self._users[oldest] = (
                    users  # Looked at again, after all others.
                )
