"""The process of one contender: reads calls as JSON lines, answers in kind."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    session_module, contender, threads = sys.argv[1:]
    # Libraries print; the answers go where the first stdout went.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module = importlib.import_module(session_module)
    session = module.Session(contender, int(threads))
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(_answer(session, call)), file=answers, flush=True)
    os._exit(0)  # TensorFlow's tables need not be taken apart.


def _answer(session: Any, call: dict[str, Any]) -> dict[str, Any]:
    try:
        method = getattr(session, call["method"])
        return {"result": method(**call["arguments"])}
    except Exception:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    main()
