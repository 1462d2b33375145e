"""The optimizers that train tables, as functions of the learning rate."""

from __future__ import annotations

import pytest
import tensorflow as tf

K, V1 = tf.keras.optimizers, tf.compat.v1.train

KERAS = {
    "SGD": lambda rate: K.SGD(rate),
    "Adagrad": lambda rate: K.Adagrad(rate, 0.2, epsilon=1e-2),
    "Adam": lambda rate: K.Adam(rate, 0.8, 0.95, epsilon=1e-3),
    "Ftrl": lambda rate: K.Ftrl(
        rate,
        initial_accumulator_value=0.2,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        beta=0.1,
    ),
    "SGD with momentum": lambda rate: K.SGD(rate, momentum=0.9),
    "SGD, Nesterov": lambda rate: K.SGD(rate, momentum=0.9, nesterov=True),
    "SGD with decay": lambda rate: K.SGD(rate, weight_decay=0.1),
    "RMSprop": lambda rate: K.RMSprop(rate),
    "RMSprop, all slots": lambda rate: K.RMSprop(
        rate, momentum=0.5, centered=True
    ),
    "Adadelta": lambda rate: K.Adadelta(rate),
    "Adamax": lambda rate: K.Adamax(rate),
    "Adam, amsgrad": lambda rate: K.Adam(rate, amsgrad=True),
    "AdamW": lambda rate: K.AdamW(rate, weight_decay=0.1),
    "Ftrl with shrinkage": lambda rate: K.Ftrl(
        rate, l2_shrinkage_regularization_strength=0.1
    ),
    "Lion": lambda rate: K.Lion(rate),
    "Nadam": lambda rate: K.Nadam(rate),
}
V1_TRAIN = {
    "v1 GradientDescent": lambda rate: V1.GradientDescentOptimizer(rate),
    "v1 Adagrad": lambda rate: V1.AdagradOptimizer(rate),
    "v1 Adam": lambda rate: V1.AdamOptimizer(rate, 0.8, 0.95, epsilon=1e-3),
    "v1 Ftrl": lambda rate: V1.FtrlOptimizer(
        rate, l1_regularization_strength=0.01, beta=0.1
    ),
    "v1 Ftrl with shrinkage": lambda rate: V1.FtrlOptimizer(
        rate, l2_shrinkage_regularization_strength=0.1
    ),
    "v1 Momentum": lambda rate: V1.MomentumOptimizer(rate, 0.9),
    "v1 RMSProp": lambda rate: V1.RMSPropOptimizer(rate, momentum=0.5),
    "v1 RMSProp, centered": lambda rate: V1.RMSPropOptimizer(
        rate, centered=True
    ),
    "v1 Adadelta": lambda rate: V1.AdadeltaOptimizer(rate),
    "v1 ProximalAdagrad": lambda rate: V1.ProximalAdagradOptimizer(rate),
    "v1 ProximalGradientDescent": lambda rate: (
        V1.ProximalGradientDescentOptimizer(rate)
    ),
}


def legacy():
    """The module of tf_keras' legacy optimizers."""
    return pytest.importorskip("tf_keras").optimizers.legacy


LEGACY = {
    "legacy SGD": lambda rate: legacy().SGD(rate),
    "legacy SGD with momentum": lambda rate: legacy().SGD(rate, 0.9),
    "legacy SGD, Nesterov": lambda rate: legacy().SGD(rate, 0.9, True),
    "legacy Adagrad": lambda rate: legacy().Adagrad(rate),
    "legacy Adagrad, large epsilon": lambda rate: legacy().Adagrad(
        rate, 0.2, epsilon=1e-2
    ),
    "legacy Adam": lambda rate: legacy().Adam(rate, 0.8, 0.95, epsilon=1e-3),
    "legacy Adam, amsgrad": lambda rate: legacy().Adam(rate, amsgrad=True),
    "legacy Ftrl": lambda rate: legacy().Ftrl(
        rate,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        beta=0.1,
    ),
    "legacy Ftrl with shrinkage": lambda rate: legacy().Ftrl(
        rate, l2_shrinkage_regularization_strength=0.1
    ),
    "legacy RMSprop": lambda rate: legacy().RMSprop(rate),
    "legacy RMSprop, centered": lambda rate: legacy().RMSprop(
        rate, centered=True
    ),
    "legacy RMSprop, all slots": lambda rate: legacy().RMSprop(
        rate, momentum=0.5, centered=True
    ),
    "legacy Adadelta": lambda rate: legacy().Adadelta(rate),
    "legacy Adamax": lambda rate: legacy().Adamax(rate),
    "legacy Nadam": lambda rate: legacy().Nadam(rate),
}
IN_GRAPHS = {**V1_TRAIN, **LEGACY}
ALL = {**KERAS, **V1_TRAIN, **LEGACY}
