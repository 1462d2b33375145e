"""The cells of the matrix, and the page that shows them.

`PYTHONPATH=.:tests python -m gradients.matrix` writes docs/gradients.md.
"""

from __future__ import annotations

import dataclasses
import pathlib

from gradients.ways import WAYS

AT_REST = ("unconnected_gradients=ZERO, not connected",)
MODES = {
    "tf.gradients": ("function",),
    # TensorFlow's accumulators do not follow a function inside of another.
    "tf.autodiff.ForwardAccumulator around a tf.function": ("eager",),
}
# By column of the page, the kinds in it, which behave alike.
COLUMNS = {
    "`Variable`": (
        "embedding_lookup",
        "embedding_lookup_unique",
        "embedding_lookup_sparse",
        "safe_embedding_lookup_sparse",
        "ragged_embedding_ops",
    ),
    "string keys": ("string keys",),
    "`ShadowVariable`": ("ShadowVariable",),
    "`TrainableWrapper`": ("TrainableWrapper",),
    "`HashTable`": ("HashTable",),
    "`TPUEmbedding`": ("TPUEmbedding",),
    "`TPUEmbeddingV0`": ("TPUEmbeddingV0",),
    "V0, growing": ("TPUEmbeddingV0, growing",),
    "Keras `Embedding`": (
        "Keras Embedding, weight",
        "Keras Embedding, shadow",
        "Keras Embedding, params",
    ),
    "`DistributedEmbedding`": ("DistributedEmbedding",),
}


@dataclasses.dataclass(frozen=True)
class Refusal:
    """An error, and what it says to do.

    Attributes:
      letter: of the page.
      match: what its text has in it.
      advice: what the page says.
    """

    letter: str
    match: str
    advice: str


EAGER = Refusal(
    "a",
    "eager mode only",
    "wrappers are made in eager mode. In a `tf.function` differentiate by the "
    "`Variable`, or look up through a `ShadowVariable`.",
)
SECOND_ORDER = Refusal(
    "b",
    "no second-order gradients",
    "a table's gradient cannot be differentiated again; that of the rows that "
    "were looked up can: `tape.watch(rows)`.",
)
DEQUEUED = Refusal(
    "c",
    "Dequeue before",
    "the function runs again for the gradient, and would take another batch. "
    "Dequeue before it, and give it the activations as an argument.",
)
UNNAMED = Refusal(
    "d",
    "must accept keyword argument 'variables'",
    "TensorFlow's own rule, for any variable: give the gradient function an "
    "argument `variables=None`, and return their gradients too.",
)
FORWARD = Refusal(
    "e",
    "forward mode",
    "use `tf.GradientTape`; or look the rows up first, and give these to the "
    "accumulator as primals.",
)
NO_JACOBIAN = Refusal(
    "f",
    "jacobian",
    "take the jacobian of the rows that were looked up: `tape.jacobian(target, "
    "rows)`.",
)
BRANCH = Refusal(
    "g",
    "inside of (the branch|it)",
    "open the tape inside of the branch, or look all ids up before it.",
)
LOOP = Refusal(
    "h",
    "before the loop",
    "look all ids up before the loop, in one call, and take rows of the result "
    "inside; or open the tape inside of the loop.",
)
ONE_BATCH = Refusal(
    "i",
    "waiting for its apply_gradients|Inconsistent shape",
    "a step is one batch, of the shapes that were built. Enqueue all ids of the "
    "loop before it, in one call; give each lookup of a step its own `name`; enqueue "
    "what no gradient follows with `training=False`.",
)
ONE_BRANCH = Refusal(
    "k",
    "in each of them",
    "TensorFlow cannot make the zeros of a shadow for the branches that have no "
    "lookup: look ids up in each branch (`ids[:0]` where there are none), open the "
    "tape inside of the branch, or look all ids up before it.",
)
# What moves a table is the gradient of its activations, whatever is made of its
# weight's. By way and kind: the way that trains the same.
SAME_AS = {
    (
        "tf.custom_gradient that changes the table's gradient",
        "DistributedEmbedding",
    ): "tf.custom_gradient"
}
OWN_WAY = (
    "j",
    "the layer moves its tables by the gradient of its activations: change that. "
    "A change to its weight's gradient has no effect.",
)

TAKE_ROWS = ("HashTable", "TPUEmbedding")
WITH_VOCABULARY = ("TPUEmbeddingV0",)
# Ways with a function, or what TensorFlow traces like one, in eager mode too.
TRACED = (
    "tape around a tf.function",
    "tape around a tf.function that calls another",
    "tf.recompute_grad around a tf.function",
    "tape around a tf.function of tf.recompute_grad",
    "tf.autodiff.ForwardAccumulator around a tf.function",
    "tape around tf.cond that calls a tf.function",
    "tape around tf.cond that calls a tf.function differentiated before",
    "tape around tf.cond that calls functions differentiated before",
    "tape around tf.cond inside of a tf.function that calls another",
    "tape around tf.switch_case that calls a tf.function",
    "tape around tf.while_loop that calls a tf.function",
    "tape around tf.while_loop that calls a tf.function differentiated before",
    "tape.jacobian of a tf.function differentiated before",
    "tape around tf.map_fn that calls a tf.function",
    "tape around tf.vectorized_map",
)
# Of which each takes a batch of its own.
TWO_LOOKUPS = (
    "tape, two lookups",
    "tape.stop_recording around another lookup",
)
# In which all branches that may be taken look up.
EVERY_BRANCH = ("tape around tf.cond",)


def modes(way):
    return MODES.get(way, ("eager", "function"))


def takes_rows(kind):
    return kind in TAKE_ROWS


def refusal(way, kind, mode):
    """The `Refusal` of a cell; None where it trains."""
    if kind == "TrainableWrapper" and (mode == "function" or way in TRACED):
        return EAGER
    if kind == "TPUEmbedding":
        return _of_steps(way)
    if kind == "HashTable":
        return None  # The rows that came out are tensors as any.
    if way == "tf.custom_gradient without `variables`":
        return UNNAMED
    if way == "nested tapes: the gradient of a table's gradient":
        return SECOND_ORDER
    if way.startswith("tf.autodiff.ForwardAccumulator"):
        return FORWARD
    if kind in WITH_VOCABULARY:
        return None
    if way.startswith("tape.jacobian"):
        return NO_JACOBIAN
    return _of_control_flow(way, kind, mode)


def _of_steps(way):
    if "recompute_grad" in way or way == "keras.remat":
        return DEQUEUED
    loops = ("tf.while_loop", "tf.map_fn", "tf.scan", "tf.vectorized_map")
    if way.startswith("tape around") and any(loop in way for loop in loops):
        return ONE_BATCH
    return ONE_BATCH if way in TWO_LOOKUPS else None


def _of_control_flow(way, kind, mode):
    # Else Python's own `if` and `while`.
    is_traced = mode == "function" or "inside of a tf.function" in way
    if way == "tape around tf.vectorized_map":
        return LOOP
    if not is_traced or not way.startswith("tape around"):
        return None
    if "tf.cond" in way or "tf.switch_case" in way:
        own = ("string keys", "DistributedEmbedding")
        if kind in own:
            return BRANCH
        if kind == "ShadowVariable" and way not in EVERY_BRANCH:
            return ONE_BRANCH
        return None
    loops = ("tf.while_loop", "tf.map_fn", "tf.scan")
    return LOOP if any(loop in way for loop in loops) else None


def verdict(way, kind):
    """The page's entry for a cell."""
    if (way, kind) in SAME_AS:
        return f"yes ({OWN_WAY[0]})"
    found = [
        "yes" if one is None else one.letter
        for one in (refusal(way, kind, mode) for mode in modes(way))
    ]
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def page():
    """The text of docs/gradients.md."""
    lines = [HEAD, "| way | " + " | ".join(COLUMNS) + " |"]
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    for way in WAYS:
        cells = []
        for kinds in COLUMNS.values():
            (cell,) = {verdict(way, kind) for kind in kinds}
            cells.append(cell)
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    notes = [
        (one.letter, one.advice)
        for one in (
            EAGER,
            SECOND_ORDER,
            DEQUEUED,
            UNNAMED,
            FORWARD,
            NO_JACOBIAN,
            BRANCH,
            LOOP,
            ONE_BATCH,
        )
    ]
    notes += [OWN_WAY, (ONE_BRANCH.letter, ONE_BRANCH.advice)]
    lines.append("")
    lines += [f"- **{letter}**: {text}" for letter, text in notes]
    return "\n".join(lines) + "\n"


HEAD = """\
# Gradients

Each way of recording a gradient that TensorFlow and Keras have, by each kind of
table. **yes**: the table trains as a dense `tf.Variable` does under the same way,
repeated ids too. A letter is an error, with what to do instead below. Where eager
mode and a `tf.function` differ: eager / in a function.

This page is written by its test, for all supported versions:
`PYTHONPATH=.:tests python -m gradients.matrix`.

- Sources: the `Variable`; a `ShadowVariable` or wrapper; the weight, `shadow` or `params`
  of a Keras layer; the tables of `TPUEmbeddingV0`. With `TPUEmbedding` and
  `HashTable`, the tape watches the rows that came out, and `apply_gradients` takes their
  gradient.
- `tape.watch` takes all of them. `tape.watched_variables()` has a stand-in for a table
  that was watched so; tapes and optimizers take that for the table.
- `unconnected_gradients=ZERO` gives slices of no row, which move nothing.
- A gradient by key has no dense form: `convert_to_tensor`, `keras.ops.isfinite` and the like
  raise, and say so. Clipping takes slices, and functions return them.
- Inside of `tf.custom_gradient`, `variables` are stand-ins too. Their gradients are
  `tf.IndexedSlices`: change their `values`. Slices that were changed as a dense tensor are
  refused.
- A `tf.function` that was traced before is recomputed as it was traced: TensorFlow
  calls no Python again, so (c) is raised only where a trace is made inside.
- "Differentiated before": TensorFlow makes the gradient of a function once, and takes
  the same where a branch or loop calls that function.
"""


if __name__ == "__main__":
    root = pathlib.Path(__file__).resolve().parents[2]
    (root / "docs" / "gradients.md").write_text(page())
