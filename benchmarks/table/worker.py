"""The process of one contender: reads calls as JSON lines, answers in kind."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    contender, threads = sys.argv[1], int(sys.argv[2])
    # Libraries print; the answers go where the first stdout went.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if contender != "limit":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    from benchmarks.table.session import Session

    session = Session(contender, threads)
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
