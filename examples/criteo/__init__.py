"""The parts of `criteo_dlrm.py`: a DLRM on click logs in Criteo's format."""
