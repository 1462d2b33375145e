"""The private TensorFlow symbols of the Estimator do what it takes them for."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf

from tfembed.estimator.private import tpu_programs, v1_sessions

v1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as made:
        yield made


def test_arguments_are_those_that_are_left_to_give():
    def function(features, labels, mode):
        return features, labels, mode

    class Bound:
        def method(self, features):
            return features

    assert v1_sessions.fn_args(function) == ("features", "labels", "mode")
    assert v1_sessions.fn_args(functools.partial(function, mode=1)) == (
        "features",
        "labels",
    )
    assert v1_sessions.fn_args(Bound().method) == ("features",)


def test_hooks_share_one_read_of_the_global_step(graph):
    v1.train.create_global_step()

    read = v1_sessions.global_step_read(graph)

    assert v1_sessions.global_step_read(graph) is read


def test_a_read_that_was_added_is_the_one_of_hooks(graph):
    step = v1.train.create_global_step()
    read = step.read_value()

    v1_sessions.add_global_step_read(graph, read)

    assert v1_sessions.global_step_read(graph) is read


def test_writers_of_a_graph_are_opened_by_ops(graph, tmp_path):
    tf.summary.create_file_writer(str(tmp_path))

    (opens,) = v1_sessions.summary_writer_initializers(graph)
    with v1.Session() as session:
        session.run(opens)
    assert len(list(tmp_path.iterdir())) == 1


def test_evaluations_are_counted_by_a_local_variable(graph):
    step = v1_sessions.eval_step()

    assert [variable.name for variable in v1.local_variables()] == [step.name]


def test_a_hook_ends_an_evaluation_after_its_steps(graph):
    v1.train.create_global_step()
    runs = v1.get_variable("runs", initializer=0, trainable=False)

    results = v1_sessions.evaluate_once(
        checkpoint_path=None,
        eval_ops=runs.assign_add(1),
        final_ops={"runs": runs},
        hooks=[v1_sessions.stop_after_evals(3)],
    )

    assert results == {"runs": 3}


def test_a_hook_tells_at_which_step_it_stops(graph):
    v1.train.create_global_step()

    assert v1_sessions.last_step(v1.train.StopAtStepHook(last_step=7)) == 7
    assert v1_sessions.last_step(v1.train.SessionRunHook()) is None


def test_a_listener_is_added_once(tmp_path):
    listener = v1.train.CheckpointSaverListener()
    hook = v1.train.CheckpointSaverHook(str(tmp_path), save_steps=1)

    v1_sessions.add_listeners(hook, [listener, listener])
    v1_sessions.add_listeners(hook, [listener])

    assert hook._listeners == [listener]


def test_an_iterator_is_saved_and_restored(graph, tmp_path):
    iterator = v1.data.make_initializable_iterator(tf.data.Dataset.range(9))
    following = iterator.get_next()
    saver = v1.train.Saver(
        [v1_sessions.iterator_saveable(following.op.inputs[0], "fail")]
    )

    with v1.Session() as session:
        session.run(iterator.initializer)
        session.run(following)
        path = saver.save(session, str(tmp_path / "state"))
        assert session.run(following) == 1
        saver.restore(session, path)
        assert session.run(following) == 1


def test_a_scaffold_runs_ops_beside_its_initialization(graph):
    value = v1.get_variable("value", [], use_resource=True)
    other = v1.get_local_variable("other", [], use_resource=True)
    scaffold = v1.train.Scaffold(
        init_op=value.initializer, local_init_op=tf.no_op()
    )
    scaffold.finalize()

    for _ in range(2):  # A session that is made anew finalizes it again.
        v1_sessions.initialize_too(scaffold, [other.initializer])

    assert scaffold.init_op == [value.initializer, other.initializer]
    with v1.Session() as session:
        session.run(scaffold.init_op)
        session.run([value, other])


def test_a_builder_lists_the_training_op(graph, tmp_path):
    builder = v1.saved_model.Builder(str(tmp_path / "model"))

    v1_sessions.add_train_op(builder, tf.no_op(name="step"))

    names = [
        op.name
        for ops in map(graph.get_collection, graph.collections)
        for op in ops
    ]
    assert names == ["step"]


def test_whether_graphs_are_written_as_text_is_what_tensorflow_does(tmp_path):
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="one")
        try:
            tf.io.write_graph(graph, str(tmp_path), "graph.pbtxt")
            written = True
        except TypeError:  # With protobuf 7.
            written = False

    assert v1_sessions.writes_text_graphs() == written


def test_modules_have_what_is_called_in_them():
    assert callable(v1_sessions.path_helpers.get_variables_path)
    assert "VariableV2" in v1_sessions.device_setter.STANDARD_PS_OPS
    assert not tpu_programs.tensor_tracer.TensorTracer.is_enabled()
    assert v1_sessions.mode_keys.EstimatorModeKeys.PREDICT == "infer"


def test_keras_counts_names_from_the_first_and_then_goes_on():
    keras = pytest.importorskip("keras")
    before = keras.backend.get_uid("fresh")

    with v1_sessions.fresh_keras_state():
        inside = keras.backend.get_uid("fresh")

    assert inside == 1
    assert keras.backend.get_uid("fresh") == before + 1
