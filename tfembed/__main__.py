"""`python -m tfembed`: the command line of tfembed."""

from __future__ import annotations

import sys

from tfembed.inspection.command import main

if __name__ == "__main__":
    sys.exit(main())
