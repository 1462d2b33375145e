"""The forms of a name's batches, and the form that each call is for.

All batches of a queue have one form: the type of each input, and the batch
size. A program that trains with RaggedTensors and evaluates with Tensors under
one name has two forms, and so has one whose last batch is smaller. For engines
each form after the first is a separate step, with a `FormName`. The form of a
dequeue or an apply_gradients follows from the calls before it, in eager mode or
in the same function.
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
    """The step name of batches in a later form of a user's name.

    Attributes:
      name: the user's name.
      form: the index of the form, from 1.
    """

    name: str | None
    form: int


StepName: TypeAlias = "str | FormName | None"


def user_name(name: StepName) -> str | None:
    """Returns the user's name of a step."""
    return name.name if isinstance(name, FormName) else name


_NONE: collections.deque[int] = collections.deque()

_Key: TypeAlias = tuple[int, "str | None"]  # Replica and name.


class _Calls:
    """The calls that were made in eager mode, or in one function.

    Attributes:
      enqueued: the forms of batches that are not dequeued yet, oldest first.
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
    """The forms of each name's batches, and the form of the next call.

    Args:
      most: the most batches that may wait per name, replica and form.
      takes_several: whether a name may have several forms. If not, every batch
        counts as of the first form, and the engine refuses others.
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
        """Returns the index of a form of a name; adds a new form."""
        forms = self._forms.setdefault(name, [])
        if form not in forms and (not forms or self._takes_several):
            forms.append(form)
        return forms.index(form) if form in forms else 0

    def step(self, name: str | None, number: int) -> StepName:
        """Returns the step name of a name's form."""
        return FormName(name, number) if number else name

    def steps(self, name: str | None) -> list[StepName]:
        """Returns the step names of all forms of a name."""
        forms = max(1, len(self._forms.get(name, ())))
        return [self.step(name, number) for number in range(forms)]

    def forget(self, name: str) -> None:
        """Forgets an idle name."""
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
                # Batches that another function dequeued are removed here, as
                # the oldest.
                numbers.popleft()

    def dequeue(
        self, name: str | None, replica: int, waiting: Callable[[StepName], int]
    ) -> StepName:
        """Returns the step of the batch to dequeue; call `note_dequeued` after.

        Args:
          name: the user's name.
          replica: the replica of the call.
          waiting: a function that counts the waiting batches of a step, called
            eagerly.

        Raises:
          tfembed.errors.StateError: the step is ambiguous.
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
        """Lists the step of another form that was dequeued before `step`.

        If its batch is still in flight, it must not wait for gradients.
        """
        last = self._eager.dequeued.get((replica, name))
        if last is None or last == _number(step) or not tf.executing_eagerly():
            return []
        return [self.step(name, last)]

    def note_dequeued(
        self, name: str | None, replica: int, step: StepName
    ) -> None:
        """Notes the step of a dequeued batch: the next gradients are for it."""
        self._calls().dequeued[replica, name] = _number(step)

    def put_back(self, name: str | None, replica: int, step: StepName) -> None:
        """Notes a failed dequeue, after which the batch may still be queued."""
        self._calls().enqueued[replica, name].appendleft(_number(step))

    def apply(self, name: str | None, replica: int) -> StepName:
        """Returns the step of the batch that gradients are for.

        Raises:
          tfembed.errors.StateError: the step is ambiguous.
        """
        if len(self._forms.get(name, ())) < 2:
            return name
        for calls in self._around():
            if (replica, name) in calls.dequeued:
                return self.step(name, calls.dequeued[replica, name])
        raise _unknown("apply_gradients", "dequeue", name)

    def clear(self) -> None:
        """Forgets all pending batches."""
        self._eager = _Calls()

    def _calls(self) -> _Calls:
        if tf.executing_eagerly():
            return self._eager
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._traced:
            self._traced[graph] = _Calls()
        return self._traced[graph]

    def _around(self) -> Iterator[_Calls]:
        """Yields the calls made here, then in the enclosing functions."""
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
        """Returns the next eager batch's form; the first if none waits."""
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
        # The others were enqueued by functions, at an unknown time.
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
    """Returns the index of a step's form."""
    return step.form if isinstance(step, FormName) else 0


def _unknown(call: str, before: str, name: str | None) -> errors.StateError:
    label = "without a name" if name is None else f"under the name {name!r}"
    return errors.StateError(
        f"{call} cannot know which batch it is for: inputs of several types or "
        f"sizes were enqueued {label}. Call {before} in the same function, or give "
        "the steps of each type their own `name`."
    )


# The names of steps, least recently used first, to free old ones.
#
# A layer that gives each step a new name, as TensorFlow's may, would leak a
# queue per name, and with pipelined steps two TensorFlow queues, whose memory
# TensorFlow never frees: so the queues of old names are reused for new names.

_MOST = 64

_LOOKED_AT = 2  # Old names to try to free for each new name.


_NOTHING = contextlib.nullcontext()


class RecentNames:
    """The names that calls have used or are using.

    Args:
      forget: a function that frees the queues of a name, or returns False if a
        batch is pending or a function may use it. It is called eagerly, while
        no call uses the name.
    """

    def __init__(self, forget: Callable[[str], bool]) -> None:
        self._forget = forget
        self._users: dict[str, int] = {}  # Name -> the number of running calls.
        self._lock = threading.Lock()

    def using(
        self, name: str | None
    ) -> contextlib.AbstractContextManager[None]:
        """Keeps a name while a call uses it; may free other names before."""
        # The name None is never freed.
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
                # Moved to the end, to be tried after all others.
                self._users[oldest] = users
