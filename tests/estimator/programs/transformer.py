"""A classifier of sentences with two layers of attention, fine-tuned.

Its shape is that of BERT's run_classifier: an optimizer of its own with slots of
get_variable, gradients that each replica clips by their global norm, a
scaffold_fn that reads a checkpoint, metrics with weights of real examples, and a
global step that the model_fn assigns.

Params: "clip" (a norm; None: the optimizer's own gradients) and
"init_checkpoint".
"""

from __future__ import annotations

import zlib

import numpy as np
import tensorflow as tf

from tfembed.estimator import ModeKeys, tpu

v1 = tf.compat.v1

BATCH = 16
VOCABULARY, LENGTH, WIDTH, HEADS = 30, 6, 8, 2
RATE, DECAY, CLIP = 0.01, 0.01, 0.3
REAL = 50  # Examples of an evaluation; the rest of its batches is padding.
_random = np.random.default_rng(3)
TOKENS = _random.integers(0, VOCABULARY, (64, LENGTH)).astype(np.int32)
LABELS = (TOKENS[:, 0] > TOKENS[:, -1]).astype(np.int32)


class AdamWeightDecay(v1.train.Optimizer):
    """Adam whose decay of weights does not go through the moments."""

    def __init__(self, rate=RATE, decay=DECAY):
        super().__init__(False, "AdamWeightDecay")
        self._rate, self._decay = rate, decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        updates = []  # Like the original, this does not count global_step.
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            slots = [
                v1.get_variable(
                    f"{variable.op.name}/{slot}",
                    variable.shape,
                    trainable=False,
                    initializer=v1.zeros_initializer(),
                )
                for slot in ("adam_m", "adam_v")
            ]
            value, *moments = adam(
                variable, slots, gradient, self._rate, self._decay
            )
            updates.append(variable.assign(value))
            updates += [a.assign(b) for a, b in zip(slots, moments)]
        return tf.group(*updates)


def adam(value, moments, gradient, rate=RATE, decay=DECAY):
    """The next value, mean and square; the bias of moments stays."""
    gradient = tf.convert_to_tensor(gradient)
    mean = 0.9 * moments[0] + 0.1 * gradient
    square = 0.999 * moments[1] + 0.001 * tf.square(gradient)
    change = mean / (tf.sqrt(square) + 1e-3) + decay * value
    return value - rate * change, mean, square


def _data():
    return tf.data.Dataset.from_tensor_slices(
        ({"tokens": TOKENS, "is_real": np.ones(64, np.float32)}, LABELS)
    )


def train_fn(params):
    return _data().repeat().batch(params["batch_size"], drop_remainder=True)


def eval_fn(params):
    return _data().take(REAL).batch(params["batch_size"])


def padded_fn(params):
    """Full batches; the rows behind the real ones have weight 0."""
    is_real = (np.arange(64) < REAL).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(
        ({"tokens": TOKENS, "is_real": is_real}, LABELS)
    ).batch(params["batch_size"], drop_remainder=True)


SHAPES = {"embeddings": (VOCABULARY, WIDTH), "classes": (WIDTH, 2)}
for _layer in range(2):
    for _name in ("query", "key", "value"):
        SHAPES[f"layer_{_layer}/{_name}"] = (WIDTH, WIDTH)
    SHAPES[f"layer_{_layer}/in"] = (WIDTH, 16)
    SHAPES[f"layer_{_layer}/out"] = (16, WIDTH)


def initial(name):
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return (random.normal(size=SHAPES[name]) * 0.3).astype(np.float32)


def attention(states, layer, get):
    size = WIDTH // HEADS

    def heads(name):
        mixed = tf.tensordot(states, get(f"layer_{layer}/{name}"), 1)
        split = tf.reshape(mixed, [-1, LENGTH, HEADS, size])
        return tf.transpose(split, [0, 2, 1, 3])

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = tf.matmul(query, key, transpose_b=True) / size**0.5
    mixed = tf.matmul(tf.nn.softmax(scores), value)
    return tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, LENGTH, WIDTH])


def normalized(states):
    mean, variance = tf.nn.moments(states, [-1], keepdims=True)
    return (states - mean) * tf.math.rsqrt(variance + 1e-5)


def logits_of(tokens, get):
    """The model, with variables that `get` gives by name."""
    states = tf.gather(get("embeddings"), tokens)
    for layer in range(2):
        states = normalized(states + attention(states, layer, get))
        hidden = tf.tensordot(states, get(f"layer_{layer}/in"), 1)
        hidden = tf.tensordot(tf.nn.gelu(hidden), get(f"layer_{layer}/out"), 1)
        states = normalized(states + hidden)
    return tf.matmul(states[:, 0], get("classes"))


def metric_fn(losses, labels, logits, is_real):
    return {
        "accuracy": v1.metrics.accuracy(
            labels, tf.argmax(logits, -1, tf.int32), weights=is_real
        ),
        "mean_loss": v1.metrics.mean(losses, weights=is_real),
    }


def train_op_of(loss, params):
    optimizer = AdamWeightDecay()
    if params["use_tpu"]:
        optimizer = v1.tpu.CrossShardOptimizer(optimizer)
    variables = v1.trainable_variables()
    if params.get("clip"):
        gradients = tf.gradients(loss, variables)
        gradients, _ = tf.clip_by_global_norm(gradients, params["clip"])
        pairs = zip(gradients, variables)
    else:
        pairs = optimizer.compute_gradients(loss, variables)
    step = v1.train.get_global_step()
    return tf.group(optimizer.apply_gradients(pairs), step.assign(step + 1))


def start_of(params):
    """A scaffold_fn that reads a checkpoint; on a CPU reads it here."""
    checkpoint = params.get("init_checkpoint")
    if not checkpoint:
        return None
    known = {name for name, _ in tf.train.list_variables(checkpoint)}
    names = {
        variable.op.name: variable.op.name
        for variable in v1.trainable_variables()
        if variable.op.name in known
    }

    def scaffold_fn():
        v1.train.init_from_checkpoint(checkpoint, names)
        return v1.train.Scaffold()

    if params["use_tpu"]:
        return scaffold_fn
    v1.train.init_from_checkpoint(checkpoint, names)
    return None


def model_fn(features, labels, mode, params):
    def get(name):
        return v1.get_variable(
            name, initializer=initial(name), use_resource=True
        )

    logits = logits_of(features["tokens"], get)
    scaffold_fn = start_of(params)
    if mode == ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(
            mode,
            predictions={"probabilities": tf.nn.softmax(logits)},
            scaffold_fn=scaffold_fn,
        )
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    loss, is_real = tf.reduce_mean(losses), features["is_real"]
    if mode == ModeKeys.TRAIN:
        return tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=train_op_of(loss, params),
            scaffold_fn=scaffold_fn,
        )
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        eval_metrics=(metric_fn, [losses, labels, logits, is_real]),
        scaffold_fn=scaffold_fn,
    )


@tf.function(autograph=False)
def _tower(tokens, labels, values):
    """The loss of a replica's rows, and its clipped gradients."""
    with tf.GradientTape() as tape:
        tape.watch(values)
        logits = logits_of(tokens, values.get)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        )
    gradients = tape.gradient(loss, list(values.values()))
    gradients, _ = tf.clip_by_global_norm(gradients, CLIP)
    return loss, {
        name: tf.convert_to_tensor(gradient)
        for name, gradient in zip(values, gradients)
    }


def losses_of_towers(replicas, steps):
    """The same training with clipping as a loop over towers, by itself.

    Each tower clips its own gradients, whose sum nobody divides.
    """
    variables = {name: tf.Variable(initial(name)) for name in SHAPES}
    moments = {name: [tf.zeros(SHAPES[name])] * 2 for name in SHAPES}
    found = []
    for step in range(steps):
        rows = np.arange(step * BATCH, (step + 1) * BATCH) % len(TOKENS)
        losses, sums = [], dict.fromkeys(SHAPES, 0.0)
        for part in np.split(rows, replicas):
            loss, gradients = _tower(
                tf.constant(TOKENS[part]),
                tf.constant(LABELS[part]),
                {name: each.read_value() for name, each in variables.items()},
            )
            losses.append(loss)
            for name, gradient in gradients.items():
                sums[name] += gradient
        for name, variable in variables.items():
            value, *moments[name] = adam(variable, moments[name], sums[name])
            variable.assign(value)
        found.append(float(sum(losses)) / replicas)
    return found


def scores_of(model):
    """Accuracy and mean loss of the real examples, by a trained model's values."""
    values = {
        name: tf.constant(model.get_variable_value(name)) for name in SHAPES
    }
    logits = logits_of(TOKENS[:REAL], values.get)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        LABELS[:REAL], logits
    )
    right = logits.numpy().argmax(-1) == LABELS[:REAL]
    return {"accuracy": right.mean(), "mean_loss": losses.numpy().mean()}
