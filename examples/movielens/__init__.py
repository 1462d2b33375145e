"""The parts of `movielens_mf.py`: matrix factorisation on MovieLens files."""
