"""Model objects instead of model_fns: `TPUEstimator(model=make_model)`."""
