"""SavedModels of an Estimator, and who decides when they are made."""
