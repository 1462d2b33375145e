"""TPUEstimator beside the one that left TensorFlow after 2.15."""
