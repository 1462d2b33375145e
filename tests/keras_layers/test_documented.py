"""The programs of docs/keras.md, and README's program in Keras."""

from __future__ import annotations

import pathlib
import re

import documents
import fresh_process

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"


def test_the_programs_of_the_pages_run_without_a_warning(tmp_path):
    (program,) = re.findall(
        r"```python\n(import keras.*?)```", README.read_text(), re.S
    )
    parts = [
        "import warnings\nwarnings.simplefilter('error', UserWarning)",
        documents.program("keras.md", "One feature: Embedding"),
        documents.program("keras.md", "All features: DistributedEmbedding"),
        documents.program("keras.md", "What Keras' calls do to tables"),
        program,
        "print(model.layers[0].table.size().numpy())",
    ]

    text = "\n".join(parts).replace("/tmp/", f"{tmp_path}/")
    assert (
        fresh_process.output_of(text, new_interpreter=True).split()[-1] == "3"
    )
