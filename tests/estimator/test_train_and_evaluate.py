"""train_and_evaluate in one process and in a cluster; exporters."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.estimator import linear_model, processes
from tests.estimator.test_exports import raw_receiver
from tfembed import errors, estimator

TRAIN = estimator.TrainSpec(linear_model.input_fn, max_steps=4)


def eval_spec(**options):
    return estimator.EvalSpec(
        linear_model.once,
        **{"steps": None, "throttle_secs": 0, "start_delay_secs": 0} | options,
    )


class Recorded(estimator.Exporter):
    """Notes when it is asked to export."""

    name = "recorded"

    def __init__(self):
        self.calls = []

    def export(
        self,
        estimator,
        export_path,
        checkpoint_path,
        eval_result,
        is_the_final_export,
    ):
        self.calls.append(
            (int(eval_result["global_step"]), is_the_final_export)
        )
        return export_path


def test_each_checkpoint_is_evaluated_and_exported(tmp_path):
    exporter = Recorded()
    model = linear_model.make(tmp_path, save_checkpoints_steps=2)

    metrics, exported = estimator.train_and_evaluate(
        model, TRAIN, eval_spec(exporters=exporter)
    )

    assert exporter.calls == [(2, False), (4, True)]
    assert exported == [str(tmp_path / "export" / "recorded")]
    assert metrics["global_step"] == 4
    np.testing.assert_allclose(
        metrics["loss"], linear_model.losses(4).mean(), rtol=1e-5
    )


def test_evaluations_are_not_more_frequent_than_asked(tmp_path):
    exporter = Recorded()
    model = linear_model.make(tmp_path, save_checkpoints_steps=1)

    estimator.train_and_evaluate(
        model, TRAIN, eval_spec(exporters=exporter, throttle_secs=600)
    )

    assert [step for step, _ in exporter.calls] == [1, 4]


def test_exporters_export_the_best_the_latest_and_the_last(tmp_path):
    model = linear_model.make(tmp_path, save_checkpoints_steps=1)
    exporters = [
        estimator.BestExporter("best", raw_receiver, exports_to_keep=1),
        estimator.LatestExporter("latest", raw_receiver, exports_to_keep=2),
        estimator.FinalExporter("last", raw_receiver),
    ]

    estimator.train_and_evaluate(model, TRAIN, eval_spec(exporters=exporters))

    counts = {
        name: len(list((tmp_path / "export" / name).iterdir()))
        for name in ("best", "latest", "last")
    }
    assert counts == {"best": 1, "latest": 2, "last": 1}


def test_a_worse_evaluation_is_no_best_export(tmp_path):
    model = linear_model.make(tmp_path).train(linear_model.input_fn, steps=1)
    exporter = estimator.BestExporter(
        serving_input_receiver_fn=raw_receiver,
        compare_fn=lambda best_eval_result, current_eval_result: (
            current_eval_result["auc"] > best_eval_result["auc"]
        ),
        event_file_pattern=None,
    )

    exported = [
        exporter.export(
            model,
            str(tmp_path / "best"),
            model.latest_checkpoint(),
            {"auc": auc},
            False,
        )
        for auc in (0.5, 0.4, 0.6)
    ]

    assert [folder is not None for folder in exported] == [True, False, True]


# The best model so far stays exported: after a restart, beside exports of
# another program, after evaluations of no rows and of NaN. Looked at too:
# early stopping, for which a loss of 0 or NaN is no best either.


def export(model, folder, loss, *, results=None, **options):
    """Exports, as a new process would, an evaluation of this loss."""
    exporter = estimator.BestExporter(
        serving_input_receiver_fn=raw_receiver, **options
    )
    return exporter.export(
        model,
        str(folder),
        model.latest_checkpoint(),
        {
            **(results or {}),
            "loss": np.float32(loss),
            "global_step": np.int64(1),
        },
        False,
    )


@pytest.mark.parametrize("pattern", ["eval/*.tfevents.*", None])
def test_a_new_process_keeps_the_best_export(tmp_path, pattern):
    model = linear_model.make(tmp_path).train(linear_model.input_fn, steps=1)
    model.evaluate(linear_model.once)  # Better than all of these.

    exported = [
        export(
            model,
            tmp_path / "best",
            loss,
            exports_to_keep=1,
            event_file_pattern=pattern,
        )
        for loss in (200.3, 300.0, 200.3, 200.2)
    ]

    assert [folder is not None for folder in exported] == [
        True,
        False,
        False,
        True,
    ]
    (kept,) = (tmp_path / "best").iterdir()
    record = json.loads(
        (kept / "assets.extra/best_eval_result.json").read_text()
    )
    assert np.float32(record["loss"]) == np.float32(200.2)
    assert record["global_step"] == 1


def test_exports_without_a_record_are_those_of_the_best_evaluation(tmp_path):
    model = linear_model.make(tmp_path).train(linear_model.input_fn, steps=1)
    results = model.evaluate(linear_model.once)
    loss, folder = results["loss"], tmp_path / "best"
    model.export_saved_model(str(folder), raw_receiver)

    assert export(model, folder, loss + 1, results=results) is None
    # The evaluation's own event is that of the best.
    assert export(model, folder, loss, results=results) is not None


@pytest.mark.parametrize("compare", [None, "any"])
def test_an_evaluation_of_no_rows_is_no_best(tmp_path, caplog, compare):
    model = linear_model.make(tmp_path).train(linear_model.input_fn, steps=1)

    with caplog.at_level("WARNING", "tensorflow"):
        results = model.evaluate(
            lambda: linear_model.once().take(0), name="nothing"
        )
    assert np.isnan(results["loss"])
    assert results["global_step"] == 1
    assert "saw no rows" in caplog.text

    options = {}
    if compare:
        options["compare_fn"] = lambda best_eval_result, current_eval_result: (
            True
        )
    caplog.clear()
    assert export(model, tmp_path / "best", np.nan, **options) is None
    assert "saw no rows" in caplog.text
    assert export(model, tmp_path / "best", 9.0, **options) is not None


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: estimator.TrainSpec("fn"),
            errors.DtypeError,
            "`input_fn` must be callable",
        ),
        (
            lambda: estimator.TrainSpec(len, max_steps=0),
            errors.ArgumentError,
            "max_steps > 0, given: 0",
        ),
        (
            lambda: estimator.TrainSpec(len, hooks=[1]),
            errors.DtypeError,
            "must be `SessionRunHook` instances, given: 1",
        ),
        (
            lambda: estimator.TrainSpec(len, saving_listeners=[1]),
            errors.DtypeError,
            "`CheckpointSaverListener` instances, given: 1",
        ),
        (
            lambda: estimator.EvalSpec(len, steps=0),
            errors.ArgumentError,
            "steps > 0, given: 0",
        ),
        (
            lambda: estimator.EvalSpec(len, name=7),
            errors.DtypeError,
            "`name` must be string, given: 7",
        ),
        (
            lambda: estimator.EvalSpec(len, throttle_secs=-1),
            errors.ArgumentError,
            "throttle_secs >= 0, given: -1",
        ),
        (
            lambda: estimator.EvalSpec(len, start_delay_secs=-1),
            errors.ArgumentError,
            "start_delay_secs >= 0, given: -1",
        ),
        (
            lambda: estimator.EvalSpec(len, exporters=3),
            errors.DtypeError,
            "must be an Exporter, an iterable",
        ),
        (
            lambda: estimator.EvalSpec(len, exporters=[Recorded(), Recorded()]),
            errors.ArgumentError,
            "must have unique names",
        ),
        (
            lambda: estimator.LatestExporter("a", len, exports_to_keep=0),
            errors.ArgumentError,
            "positive number. Got 0",
        ),
        (
            lambda: estimator.BestExporter(compare_fn=lambda best: True),
            errors.ArgumentError,
            "must include best_eval_result",
        ),
    ],
)
def test_specs_that_cannot_work_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_arguments_of_other_types_are_refused(tmp_path):
    model = linear_model.make(tmp_path)

    with pytest.raises(errors.DtypeError, match="`estimator` must have"):
        estimator.train_and_evaluate("model", TRAIN, eval_spec())
    with pytest.raises(errors.DtypeError, match="`train_spec` must have"):
        estimator.train_and_evaluate(model, eval_spec(), eval_spec())
    with pytest.raises(errors.DtypeError, match="`eval_spec` must have"):
        estimator.train_and_evaluate(model, TRAIN, TRAIN)


def test_a_second_evaluator_is_refused(tmp_path, monkeypatch):
    environment = {
        "cluster": {"chief": ["host:1"]},
        "task": {"type": "evaluator", "index": 1},
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps(environment))

    with pytest.raises(errors.ArgumentError, match="only be one `evaluator`"):
        estimator.train_and_evaluate(
            linear_model.make(tmp_path), TRAIN, eval_spec()
        )


def train_in_cluster(folder):
    model = linear_model.make(
        folder,
        save_checkpoints_steps=20,
        experimental_max_worker_delay_secs=0,
        log_step_count_steps=None,
    )
    estimator.train_and_evaluate(
        model,
        estimator.TrainSpec(linear_model.input_fn, max_steps=100),
        eval_spec(throttle_secs=1),
    )


@pytest.mark.slow
def test_a_cluster_trains_and_evaluates_together(tmp_path):
    with processes.Cluster(
        train_in_cluster, str(tmp_path), servers=1
    ) as cluster:
        statuses = [
            cluster.wait(job) for job in ("chief", "worker", "evaluator")
        ]

    assert statuses == [0, 0, 0]
    model = linear_model.make(tmp_path)
    assert model.get_variable_value("global_step") >= 100
    results = model.evaluate(linear_model.once)
    assert results["loss"] < 0.1 * linear_model.losses(0).mean()
    assert list((tmp_path / "eval").glob("events*"))
