"""Update rules of embedding tables: frozen descriptions, one file each.

Names, arguments and defaults are those of `tf.tpu.experimental.embedding`;
TensorFlow's own objects are accepted wherever one of these is.
"""

from tfembed.optimizers.adagrad import Adagrad
from tfembed.optimizers.adagrad_momentum import AdagradMomentum
from tfembed.optimizers.adam import Adam
from tfembed.optimizers.ftrl import FTRL
from tfembed.optimizers.interface import Optimizer
from tfembed.optimizers.sgd import SGD
from tfembed.optimizers.translation import from_tensorflow

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "AdagradMomentum",
    "Adam",
    "Optimizer",
    "from_tensorflow",
]
