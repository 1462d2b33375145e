"""Update rules of embedding tables: immutable descriptions, one per file.

The names, arguments and defaults of SGD, Adagrad, AdagradMomentum, Adam and
FTRL are those of `tf.tpu.experimental.embedding`, whose objects are accepted
wherever a rule is. CustomOptimizer applies a function of yours; RowWiseAdagrad
is a rule of FBGEMM. The others are rules of TPUs that this API does not have.
"""

from tfembed.optimizers.adadelta import Adadelta
from tfembed.optimizers.adagrad import Adagrad
from tfembed.optimizers.adagrad_momentum import AdagradMomentum
from tfembed.optimizers.adam import Adam
from tfembed.optimizers.centered_rms_prop import CenteredRMSProp
from tfembed.optimizers.custom_optimizer import CustomOptimizer
from tfembed.optimizers.ftrl import FTRL
from tfembed.optimizers.interface import Optimizer
from tfembed.optimizers.lion import Lion
from tfembed.optimizers.momentum import Momentum
from tfembed.optimizers.proximal_adagrad import ProximalAdagrad
from tfembed.optimizers.rms_prop import RMSProp
from tfembed.optimizers.row_wise_adagrad import RowWiseAdagrad
from tfembed.optimizers.sgd import SGD
from tfembed.optimizers.translation import from_tensorflow
from tfembed.optimizers.yogi import Yogi

__all__ = [
    "FTRL",
    "SGD",
    "Adadelta",
    "Adagrad",
    "AdagradMomentum",
    "Adam",
    "CenteredRMSProp",
    "CustomOptimizer",
    "Lion",
    "Momentum",
    "Optimizer",
    "ProximalAdagrad",
    "RMSProp",
    "RowWiseAdagrad",
    "Yogi",
    "from_tensorflow",
]
