"""Trains a DLRM on click logs in Criteo's format, and serves it.

    python examples/criteo_dlrm.py                       # a planted stream
    python examples/criteo_dlrm.py --data 'logs/day_*.gz'

The 26 categories are hashed as they are read and kept in tables without a
vocabulary, trained through tfembed.TPUEmbedding. docs/demo.md explains the
output and the flags. Exit codes: 0; 1 for data or checkpoints that cannot be
used, with the reason on stderr; 2 for wrong flags; 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import time

_START = time.monotonic()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from criteo.flags import parse_flags  # noqa: E402 - TensorFlow reads the variable.


def main(arguments: list[str]) -> int:
    """Runs the demo; its exit code."""
    flags = parse_flags(arguments)
    try:
        # Imported here so that --help answers, and Ctrl-C ends, at once.
        from criteo.demo import Demo
        from criteo.serving import ServingError

        from tfembed.errors import TfembedError
    except KeyboardInterrupt:
        return 130
    try:
        return Demo(flags, started=_START).run()
    except (TfembedError, ServingError, OSError) as error:
        print(f"criteo_dlrm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("criteo_dlrm: interrupted before the end", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
