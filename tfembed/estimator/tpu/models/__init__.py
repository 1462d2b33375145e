"""Model objects in place of model_fns: `TPUEstimator(model=make_model)`."""
