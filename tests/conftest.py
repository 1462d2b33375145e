"""What all tests share: quiet logs, four logical CPUs, hypothesis profiles.

HYPOTHESIS_PROFILE selects the depth: `ci` (the default) or `full`.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hypothesis
import tensorflow as tf

LOGICAL_CPUS = 4


def _split_the_cpu() -> None:
    """Gives MirroredStrategy its devices; possible only before the first op."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * LOGICAL_CPUS
    )


_split_the_cpu()
hypothesis.settings.register_profile(
    "ci", max_examples=50, deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.register_profile(
    "full", max_examples=2500, deadline=None, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
