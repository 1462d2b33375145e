"""`tfembed.keras.Model` under MultiWorkerMirroredStrategy: two workers.

All tests share one run of the workers.
"""

from __future__ import annotations

import pytest

from tests.clusters import workers

pytestmark = pytest.mark.slow

PROGRAM = """
    import keras
    import tfembed.keras.model as keras_model
    from tests.clusters import fitted_models
    import tfembed.keras

    folder = FOLDER
    for name, samples, options in (
        ("functional", 69, {}),
        ("subclassed", 66, {
            "make": fitted_models.subclassed, "steps_per_execution": 4,
        }),
        ("of a shared table", 69, {"layer": fitted_models.shared_rows}),
    ):
        saw[name] = fitted_models.differences(
            strategy, samples, compares=me == 0, **options
        )
    with strategy.scope():
        model = fitted_models.compiled(
            tfembed.keras.Model, layer=fitted_models.shared_rows
        )
    saw["refused"] = [
        failure(lambda: save(folder + "/refused.keras"))
        for save in (model.save, model.save_weights, model.export)
    ]
    model, others = fitted_models.interrupted_and_saved(strategy, folder)
    saw |= others
    if me == 0:
        keras_model.MEETING_SECS = 0.5
        saw["alone"] = failure(
            lambda: model.save_weights(folder + "/alone.weights.h5")
        )
        saw["wrote_alone"] = os.path.exists(folder + "/alone.weights.h5")
    end()
"""


@pytest.fixture(name="seen", scope="module")
def run_workers(tmp_path_factory):
    """What the chief and the other worker saw."""
    folder = str(tmp_path_factory.mktemp("mirrored"))
    return workers.run(PROGRAM.replace("FOLDER", repr(folder)), 2)


# A part of a batch counts by its size. Looked at too: losses that are sums,
# regularizers, metrics, batches that some workers have nothing of.
@pytest.mark.parametrize(
    "model", ["functional", "subclassed", "of a shared table"]
)
def test_a_model_gives_the_numbers_of_one_process(seen, model):
    apart = seen[0][model]

    assert sorted(apart) == [
        "evaluate", "loss", "mae", "predict", "val_loss", "val_mae", "weights",
    ]  # fmt: skip
    assert max(apart.values()) < 1e-6, apart


def test_logs_of_a_batch_are_the_same_on_all_workers(seen):
    assert seen[0]["last"] == seen[1]["last"]


@pytest.mark.parametrize("worker", [0, 1])
def test_a_fit_that_was_killed_goes_on_from_its_backup(seen, worker):
    assert "backup" in seen[0]["left"]
    assert seen[worker]["epochs"] == [2, 3]


def test_all_workers_save_and_one_file_results(seen):
    chief, other = seen

    assert chief["files"] == [
        "best.keras", "board", "log.csv", "saved.keras", "saved.weights.h5",
        "served",
    ]  # fmt: skip
    assert chief["boards"] == 2  # Of two fits of the chief.
    assert chief["loaded"] and other["loaded"]


def test_a_save_of_shared_tables_is_refused_before_a_file_is_there(seen):
    for worker in seen:
        assert len(worker["refused"]) == 3
        for message in worker["refused"]:
            assert "is shared by 2 workers" in message
        assert "refused.keras" not in worker["files"]


def test_a_save_by_the_chief_alone_is_an_error(seen):
    chief, _ = seen

    assert "All workers must call it" in chief["alone"]
    assert "worker 0" in chief["alone"]
    assert not chief["wrote_alone"]
