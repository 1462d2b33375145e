"""Lowers steps of model_fns of TensorFlow 1, and runs them on simulated replicas.

    python -m proof.estimator_steps FOLDER [--full]

Any TensorFlow does. TensorFlow's own passes of the TPU bridge turn a step into
StableHLO whose arguments are the inputs and the variables' values. What
`tfembed.estimator.replicas` makes of the same step is written beside it, for
`proof.estimator_runs` to compare.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import time
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.tpu import tpu_function

from proof.estimator_models import MODELS, Model, batches
from proof.results import Result, write
from tfembed.estimator.replicas import replicate

__all__ = ["lowered", "main", "simulated"]

v1 = tf.compat.v1
STEPS = 5
_RESOURCES = (
    "inline",
    "tf-shape-inference",
    "func.func(tf-device-decompose-resource-ops)",
    "tf-shape-inference",
    "tf-promote-resources-to-args",
    "canonicalize",
    "tf-shape-inference",
)
_TO_STABLEHLO = (
    "xla-legalize-tf{legalize-chlo=true device-type=XLA_TPU_JIT},canonicalize,"
    "cse,hlo-legalize-to-stablehlo,canonicalize"
)
_ELEMENTS = {
    tf.float32: "f32",
    tf.float64: "f64",
    tf.int32: "i32",
    tf.int64: "i64",
    tf.bool: "i1",
}


def lowered(model: Model, replicas: int) -> tuple[str, list[str]]:
    """A step as StableHLO.

    Returns:
      The program's text, whose first arguments are features and labels, and the
      names of the variables that are the arguments after them. Where a variable
      is assigned, its argument names the result that is its new value.
    """

    def step(*inputs: Any) -> Any:
        with tpu_function.tpu_shard_context(replicas):
            return model.step(*inputs)

    wrapped = v1.wrap_function(step, model.specs())
    traced = tf.function(wrapped).get_concrete_function(*model.specs())
    variables = {
        id(variable.handle): variable
        for variable in (
            *wrapped.graph.variables,
            *wrapped.graph.get_collection("variables"),
        )
    }
    captured = [variables[id(handle)] for handle in traced.captured_inputs]
    text = tf.mlir.experimental.convert_function(
        traced, pass_pipeline="tf-standard-pipeline"
    )
    text = _with_types(text, len(model.specs()), captured)
    for passes in (*_RESOURCES, _TO_STABLEHLO):
        text = tf.mlir.experimental.run_pass_pipeline(text, passes)
    left = sorted(set(re.findall(r'"?\b(tf\.[A-Z]\w+)', text)))
    if left:
        raise AssertionError(f"ops of TensorFlow are left: {left}")
    text = _with_all_reduces(text, replicas)
    return text, [v.name.partition(":")[0] for v in captured]


def _with_types(text: str, inputs: int, variables: list[Any]) -> str:
    """Names the entry `main`, and gives handles the types of their variables."""
    name = re.search(r"func\.func @(__inference_\w+)\(", text)
    assert name
    text = text.replace(f"@{name.group(1)}(", "@main(")
    head, rest = text.split("func.func @main(", 1)
    signature, rest = rest.split(" {\n", 1)
    body, others = rest.split("\n  }\n", 1)
    casts = ""
    for i, variable in enumerate(variables, inputs):
        dims = "".join(f"{size}x" for size in variable.shape)
        value = f"tensor<{dims}{_ELEMENTS[variable.dtype.base_dtype]}>"
        handle = f"tensor<!tf_type.resource<{value}>>"
        signature = re.sub(
            rf"(%arg{i}: )tensor<\*x!tf_type\.resource>",
            rf"\1{handle}",
            signature,
            count=1,
        )
        body = re.sub(rf"%arg{i}\b", f"%handle{i}", body)
        casts += (
            f'    %handle{i} = "tf.Cast"(%arg{i}) {{Truncate = false}} : '
            f"({handle}) -> tensor<*x!tf_type.resource>\n"
        )
    return (
        f"{head}func.func @main({signature} {{\n{casts}{body}\n  }}\n{others}"
    )


def _with_all_reduces(text: str, replicas: int) -> str:
    """Writes sums over replicas as StableHLO has them."""
    groups = f"dense<[{list(range(replicas))}]> : tensor<1x{replicas}xi64>"

    def all_reduce(found: re.Match[str]) -> str:
        result, operand, kind = found.groups()
        element = kind.rpartition("x")[2].removeprefix("tensor<").rstrip(">")
        scalar = f"tensor<{element}>"
        return (
            f'{result} = "stablehlo.all_reduce"({operand}) ({{\n'
            f"    ^bb0(%a: {scalar}, %b: {scalar}):\n"
            f"      %s = stablehlo.add %a, %b : {scalar}\n"
            f"      stablehlo.return %s : {scalar}\n"
            f"    }}) {{replica_groups = {groups}}} : ({kind}) -> {kind}"
        )

    text = re.sub(
        r'(%\w+) = "(?:stablehlo|mhlo)\.cross[-_]replica[-_]sum"\((%\w+)\)'
        r"[^\n]*? : \((tensor<[^)]*>)\) -> tensor<[^\n]*>",
        all_reduce,
        text,
    )
    text = re.sub(r"module attributes [^\n]*\{\n", "module {\n", text, count=1)
    text = re.sub(r'tf\._user_specified_name = "[^"]*"(, )?', "", text)
    text = re.sub(r"attributes \{[^\n]*?\} \{\n", "{\n", text, count=1)
    return text.replace(" {}", "")


def simulated(
    model: Model, replicas: int, steps: int = STEPS
) -> dict[str, np.ndarray]:
    """Runs a step on simulated replicas.

    Returns:
      "loss" [steps, replicas], and by `before/NAME` and `after/NAME` the
      variables' values.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        v1.train.get_or_create_global_step()
        feeds = [
            [v1.placeholder(spec.dtype, spec.shape) for spec in model.specs()]
            for _ in range(replicas)
        ]
        made = replicate(model.step, feeds)
        session.run(v1.global_variables_initializer())
        session.run(made.start_of_loop)
        variables = {v.op.name: v for v in v1.global_variables()}
        before = session.run(variables)
        losses = []
        for batch in batches(model, replicas, steps):
            feed = {
                placeholder: value
                for given, values in zip(feeds, batch)
                for placeholder, value in zip(given, values)
            }
            losses.append(session.run(made.outputs, feed))
        after = session.run(variables)
    found = {"loss": np.array(losses)}
    for name in variables:
        found[f"before/{name}"] = before[name]
        found[f"after/{name}"] = after[name]
    return found


def main() -> None:
    """Lowers and simulates all, and writes a result for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    results, index = [], []
    for model in MODELS:
        for replicas in (1, 2, 4, 8) if arguments.full else (4,):
            start = time.monotonic()
            columns: dict[str, Any] = {"replicas": replicas}
            try:
                text, names = lowered(model, replicas)
                stem = re.sub(r"\W+", "_", f"estimator {model.name}")
                file = f"{stem}_{replicas}.mlir"
                (arguments.folder / file).write_text(text)
                if model.is_compared:
                    np.savez(
                        arguments.folder / f"{file}.npz",
                        **simulated(model, replicas),
                    )
                index.append(
                    {
                        "name": model.name,
                        "replicas": replicas,
                        "file": file,
                        "variables": names,
                        "batches": [
                            [[x.tolist() for x in pair] for pair in batch]
                            for batch in batches(model, replicas, STEPS)
                        ],
                        "dtype": model.features[0].name,
                        "is_compared": model.is_compared,
                    }
                )
                columns |= {
                    "ops": text.count("stablehlo."),
                    "variables": len(names),
                    "sums": text.count("stablehlo.all_reduce"),
                }
            except Exception as raised:
                columns["error"] = str(raised).splitlines()[0]
            columns["seconds"] = round(time.monotonic() - start, 1)
            results.append(Result(model.name, "error" not in columns, columns))
            write(results, arguments.folder / "estimator_steps.json")
    (arguments.folder / "estimator_index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main()
