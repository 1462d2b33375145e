"""Optimizers of Keras 3, tf_keras and tf.compat.v1 that train tables' rows."""
