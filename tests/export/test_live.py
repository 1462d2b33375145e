"""Models that take changed rows in while they serve: `live=True`.

A process that cannot import tfembed serves the model, as Python does and as
servers do; test_tensorflow1.py has a session. The kind:
what a lookup reads is of one update, and what is no whole update of a table
changes nothing. tests/tables/test_whole_batches.py has it for our own tables.
"""

from __future__ import annotations

import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import fresh_process
import tfembed
from tfembed import errors
from tfembed.export import Changes, changed, to_stock
from tfembed.export.live import input_names
from tfembed.export.row_format import RowFormat

_KEYS = np.arange(400) * 977
_WORDS = np.array([b"w%d" % i for i in range(100)], object)
_ASKED = {
    "ids": np.concatenate([_KEYS, np.arange(-100, 0), np.arange(1, 100)]),
    "words": np.array([b"w%d" % i for i in range(600)], object),
}
LOADERS = ("load", "c_api")


def _model():
    users = tfembed.HashTable(
        4, name="the users", initializer=keras.initializers.RandomNormal(seed=1)
    )
    words = tfembed.HashTable(
        3, key_dtype=tf.string, devices=["/CPU:0"] * 2, name="words"
    )
    drawn = np.random.default_rng(0)
    users.upsert(_KEYS, drawn.normal(size=[400, 4]))
    words.upsert(_WORDS, drawn.normal(size=[100, 3]))
    model = tf.Module()
    model.users, model.words = users, words

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, "ids"),
            tf.TensorSpec([None], tf.string, "words"),
        ]
    )
    def serve(ids, words):
        rows, exists = model.users.lookup(ids)
        rows_of_words = tf.cond(  # A table in a branch is live, too.
            tf.size(words) > 0,
            lambda: model.words.lookup(words)[0],
            lambda: tf.zeros([0, 3]),
        )
        return {"rows": rows, "exists": exists, "words": rows_of_words}

    model.serve = serve
    return model


def _train(model):
    """Changes rows, adds some and removes some, of both tables."""
    model.users.upsert(_KEYS[:50], np.full([50, 4], 7.0))
    model.users.upsert(np.arange(1, 60), np.full([59, 4], 8.0))
    model.users.remove(_KEYS[300:])
    model.words.upsert(tf.constant(_ASKED["words"][90:200]), np.ones([110, 3]))
    model.words.remove(tf.constant(_WORDS[:10]))


def _answers(model):
    outputs = model.serve(*map(tf.constant, _ASKED.values()))
    return {name: value.numpy() for name, value in outputs.items()}


def _flipped(update, at):
    damaged = update.copy()
    damaged[at] ^= 64
    return damaged


_SERVE = """
    import json, pathlib, sys, threading

    class NoTfembed:
        def find_spec(self, name, *others):
            if name.split(".")[0] == "tfembed":
                raise ImportError("no tfembed here")

    sys.meta_path.insert(0, NoTfembed())
    import numpy as np
    import tensorflow as tf
    from export import c_api

    folder = pathlib.Path(sys.argv[1])
    tensors = json.loads((folder / "signatures.json").read_text())
    path = str(folder / "stock")
    loaded = tf.saved_model.load(path).signatures
    model = c_api.Model(path)

    def by_load(signature, given):
        given = {name: tf.constant(value) for name, value in given.items()}
        outputs = loaded[signature](**given)
        return {name: value.numpy() for name, value in outputs.items()}

    def by_c_api(signature, given):
        inputs, outputs = tensors[signature]
        return model.run(outputs, {inputs[n]: v for n, v in given.items()})

    asked = dict(np.load(folder / "asked.npz", allow_pickle=True))
    good, *bad = np.load(folder / "updates.npz", allow_pickle=True)["updates"]
    for loader, call in (("load", by_load), ("c_api", by_c_api)):
        seen = {"before": call("serving_default", asked)}
        refusals = []
        for step in ("refused", "after"):
            for update in bad:
                try:
                    call("tfembed_update", update)
                    refusals.append("not refused")
                except Exception as error:
                    refusals.append(str(error))
            seen[step] = call("serving_default", asked)
            counts = call("tfembed_update", good)
        np.savez(
            folder / loader,
            refusals=refusals,
            counts=[int(counts[name]) for name in sorted(counts)],
            **{f"{s} {n}": v for s, o in seen.items() for n, v in o.items()},
        )

    # Readers beside updates, by the C API.
    versions = np.load(folder / "updates.npz", allow_pickle=True)["versions"]
    torn, looked, done = [], [], []
    by_c_api("tfembed_update", versions[0])

    def read():
        while not done:
            got = by_c_api("serving_default", asked)
            rows = got["rows"][got["rows"][:, 0] >= 1000]
            torn.append(len(np.unique(rows)) > 1)
            looked.append(len(rows))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for i in range(int(sys.argv[2])):
        by_c_api("tfembed_update", versions[i % len(versions)])
    done.append(True)
    for reader in readers:
        reader.join()
    print(json.dumps({"torn": sum(torn), "looked": looked}))
    assert not any(name.startswith("tfembed") for name in sys.modules)
"""


def _signatures(path):
    """Returns the tensors of each signature's inputs and outputs."""
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((path / "saved_model.pb").read_bytes())
    return {
        name: [
            {key: tensor.name for key, tensor in part.items()}
            for part in (one.inputs, one.outputs)
        ]
        for name, one in model.meta_graphs[0].signature_def.items()
    }


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """What a served model answered before, at and after updates."""
    folder = tmp_path_factory.mktemp("live")
    model = _model()
    tf.saved_model.save(model, folder / "ours", signatures=model.serve)
    report = to_stock(folder / "ours", folder / "stock", live=True)
    before = _answers(model)
    _train(model)
    update = changed(model, since=folder / "stock")
    users, words = update["the_users"], update["words"]
    bad = [
        {"the_users": wrong, "words": words}
        for wrong in (
            users[:-64], users[:100], users[64:], words,
            np.zeros(192, np.uint8), *(_flipped(users, at) for at in (
                0, 25, 50, 70, 104, 600, -90, -64,
            )),
        )
    ] + [{"the_users": users, "words": _flipped(words, -100)}]  # fmt: skip
    versions = [
        changed(
            {"the users": Changes(_KEYS, np.full([400, 4], 1000.0 + version))},
            since=folder / "stock",
        )
        for version in range(4)
    ]
    np.savez(folder / "asked.npz", **_ASKED)
    np.savez(folder / "updates.npz", updates=[update, *bad], versions=versions)
    (folder / "signatures.json").write_text(
        json.dumps(_signatures(folder / "stock"))
    )
    printed = fresh_process.output_of(_SERVE, folder, 20)
    return types.SimpleNamespace(
        folder=folder,
        model=model,
        report=report,
        update=update,
        answers={"before": before, "after": _answers(model)},
        served={
            loader: dict(np.load(folder / f"{loader}.npz"))
            for loader in LOADERS
        },
        beside=json.loads(printed),
    )


@pytest.mark.parametrize("loader", LOADERS)
def test_a_server_answers_what_the_trainer_answers_once_it_has_an_update(
    live, loader
):
    for step, answers in live.answers.items():
        for output, value in answers.items():
            served = live.served[loader][f"{step} {output}"]
            assert served.tobytes() == value.tobytes(), (step, output)


@pytest.mark.parametrize("loader", LOADERS)
def test_an_update_that_is_not_whole_or_of_another_table_changes_nothing(
    live, loader
):
    served = live.served[loader]

    refusals = served["refusals"].tolist()
    assert len(refusals) == 2 * 14
    for text in refusals:
        assert "The update of table '" in text.replace("\\", "")
        assert "All tables serve what they served before" in text
    for fault in ("cut off", "another table, or another export", "checksum"):
        assert any(fault in text for text in refusals)
    assert served["counts"].tolist() == [59 + 50 + 100, 110 + 10]
    for output in live.answers["before"]:
        np.testing.assert_array_equal(
            served[f"refused {output}"], served[f"before {output}"]
        )


def test_no_answer_has_rows_of_two_updates(live):
    assert live.beside["torn"] == 0
    assert len(live.beside["looked"]) > 1
    assert set(live.beside["looked"]) == {400}


def test_a_checkpoint_gives_the_update_that_the_model_gives(live, tmp_path):
    tf.train.Checkpoint(model=live.model).write(tmp_path / "ckpt")

    update = changed(tmp_path / "ckpt", since=live.folder / "stock")

    for name, octets in live.update.items():
        assert octets.tobytes() == update[name].tobytes(), name


def test_a_report_names_the_inputs_of_the_update(live):
    assert live.report.updated_by == ("the_users", "words")
    assert "tfembed_update takes the_users, words." in str(live.report)


def test_inputs_of_an_update_have_names_that_python_takes():
    assert input_names(["a", "of 4", "of-4", "7", "", "layers/é"]) == [
        "a", "of_4", "of_4_2", "_7", "_", "layers__",
    ]  # fmt: skip


def test_an_update_has_rows_in_the_form_of_the_export(tmp_path):
    table = tfembed.HashTable(8, name="user")
    table.upsert(_KEYS, np.zeros([400, 8]))
    model = tf.Module()
    model.table = table
    model.serve = tf.function(
        lambda ids: {"rows": table.lookup(ids)[0]},
        input_signature=[tf.TensorSpec([None], tf.int64, "ids")],
    )
    tf.saved_model.save(model, tmp_path / "ours", {"serve": model.serve})
    to_stock(tmp_path / "ours", tmp_path / "stock", rows="int8", live=True)
    stock = tf.saved_model.load(tmp_path / "stock").signatures
    rows = np.random.default_rng(1).normal(size=[200, 8]).astype(np.float32)
    table.upsert(_KEYS[:200], rows)

    update = changed(table, since=tmp_path / "stock")["user"]
    stock["tfembed_update"](user=tf.constant(update))

    form = RowFormat("int8", "float32", 8)
    assert len(update) < 200 * (form.row_bytes + 12) + 1000
    np.testing.assert_array_equal(
        stock["serve"](ids=tf.constant(_KEYS[:200]))["rows"],
        form.decode(tf.constant(form.encode(rows)[0])),
    )
    infinite = Changes([5], [[np.inf] * 8])
    with pytest.raises(errors.ArgumentError, match="row of key 5 has no form"):
        changed({"user": infinite}, since=tmp_path / "stock")


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ({"nobody": Changes()}, errors.MissingTableError, "'nobody'.*'the us"),
        ({"words": Changes(["a"], [[1, 2]])}, errors.DtypeError, "got .*2"),
        ({"words": Changes(["a"], [1, 2])}, errors.ArgumentError, "a row for"),
        ({"words": Changes([7], [[1] * 3])}, errors.DtypeError, "be string"),
        ({"words": Changes(gone=[7])}, errors.DtypeError, "be string"),
        (
            {"words": Changes(["a"], [["b"] * 3])},
            errors.DtypeError,
            "must be float32",
        ),
        (
            {"words": Changes(["a", "b"], np.ones([2, 3]), gone=["b"])},
            errors.ArgumentError,
            "each key must be in `keys` or `gone` once",
        ),
        (
            lambda: {"words": tfembed.HashTable(3, name="x")},
            errors.DtypeError,
            "must have strings as keys",
        ),
        (
            lambda: tfembed.HashTable(4, name="x"),
            errors.MissingTableError,
            "are not in `source`",
        ),
        ("nowhere", errors.CheckpointError, "no file"),
    ],
)  # fmt: skip
def test_changes_that_do_not_fit_are_refused(live, source, error, text):
    with pytest.raises(error, match=text):
        changed(
            source() if callable(source) else source,
            since=live.folder / "stock",
        )


def test_a_model_that_is_not_live_has_no_changes(live):
    with pytest.raises(errors.ArgumentError, match=r"live=True"):
        changed(live.model, since=live.folder / "ours")
