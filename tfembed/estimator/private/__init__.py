"""The private TensorFlow symbols of estimators; no other module of theirs has any."""
