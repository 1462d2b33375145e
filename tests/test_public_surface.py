"""`import tfembed` gives its names, and does nothing else."""

from __future__ import annotations

import importlib
import inspect
import pathlib
import pkgutil
import re
import types

import pytest
import tensorflow as tf

import tfembed

ROOT = pathlib.Path(__file__).resolve().parents[1]

PUBLIC = {
    "FTRL",
    "SGD",
    "Adadelta",
    "Adagrad",
    "AdagradMomentum",
    "Adam",
    "CenteredRMSProp",
    "CustomCombiner",
    "CustomOptimizer",
    "FeatureConfig",
    "HashTable",
    "Lion",
    "Momentum",
    "PackedFeatures",
    "ProximalAdagrad",
    "QuantizationConfig",
    "RMSProp",
    "RowIdInitializer",
    "RowInitializer",
    "RowWiseAdagrad",
    "SparseCoreEmbeddingConfig",
    "TPUEmbedding",
    "TPUEmbeddingForServing",
    "TPUEmbeddingV0",
    "TPUEmbeddingV2",
    "TableConfig",
    "TableSize",
    "Yogi",
    "__version__",
    "checkpoint",
    "dynamic_embedding",
    "errors",
    "optimizers",
    "pack_features",
    "policies",
    "serving_embedding_lookup",
    "sysconfig",
}
# Rooms are modules of the package whether or not they are promised.
ROOMS = {
    "data",
    "estimator",
    "foreign_optimizers",
    "not_in_release",
    "checks",
    "cluster",
    "config",
    "embedding",
    "export",
    "initializers",
    "inspection",
    "monitoring",
    "printing",
    "saved",
    "keras",
    "ops",
    "optional_packages",
    "tables",
    "tpu",
    "transfer",
    "units",
}


def test_all_names_of_tensorflows_embeddings_are_there():
    theirs = tf.tpu.experimental.embedding
    names = {name for name in dir(theirs) if not name.startswith("_")}
    assert names <= PUBLIC


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("TPUEmbeddingV2", "TPUEmbedding trains the same tables"),
        ("SparseCoreEmbeddingConfig", "Leave it out"),
    ],
)
def test_what_sparse_cores_have_says_what_to_do_instead(name, way_out):
    with pytest.raises(tfembed.errors.UnsupportedError, match=way_out):
        getattr(tfembed, name)({}, pipeline_execution_with_tensor_core=True)


def test_the_public_names_are_these():
    assert set(tfembed.__all__) == PUBLIC
    found = {name for name in vars(tfembed) if not name.startswith("_")}
    assert found - {"annotations"} - ROOMS == PUBLIC - {"__version__"}


def test_every_update_rule_is_at_the_top_level():
    rules = {
        name
        for name in tfembed.optimizers.__all__
        if isinstance(getattr(tfembed.optimizers, name), type)
    } - {"Optimizer"}
    assert rules <= PUBLIC
    assert rules <= set(dir(tfembed))


def test_modules_that_are_imported_on_first_use_are_listed():
    assert {"estimator", "keras", "tpu"} <= set(dir(tfembed))
    assert set(dir(tfembed)) >= PUBLIC


@pytest.mark.parametrize(
    "name",
    ["health", "simulate", "warm_start", "keras.callbacks.TableMonitor"],
)
def test_names_that_few_programs_need_come_on_first_use(name):
    found = tfembed
    for part in name.split("."):
        found = getattr(found, part)

    assert inspect.getdoc(found)
    assert name.partition(".")[0] in dir(tfembed)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        tfembed.policies.simulat


def test_simulate_and_warm_start_have_their_first_names_too():
    assert tfembed.policies.simulate is tfembed.simulate
    assert tfembed.checkpoint.warm_start is tfembed.warm_start


def test_the_version_names_the_tensorflow_it_was_built_for():
    minor = "".join(tf.__version__.split(".")[:2])
    assert re.fullmatch(rf"\d+\.\d+\.\d+\.{minor}", tfembed.__version__)


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_every_public_name_has_a_docstring(name):
    assert inspect.getdoc(getattr(tfembed, name))


THEIRS = tf.tpu.experimental.embedding
MIRRORED = [
    (tfembed.TPUEmbedding.__init__, THEIRS.TPUEmbedding.__init__),
    (tfembed.TPUEmbedding.build, THEIRS.TPUEmbedding.build),
    (tfembed.TPUEmbedding.enqueue, THEIRS.TPUEmbedding.enqueue),
    (tfembed.TPUEmbedding.dequeue, THEIRS.TPUEmbedding.dequeue),
    (tfembed.TPUEmbedding.apply_gradients, THEIRS.TPUEmbedding.apply_gradients),
    (tfembed.serving_embedding_lookup, THEIRS.serving_embedding_lookup),
    (tfembed.TPUEmbeddingV0.__init__, THEIRS.TPUEmbeddingV0.__init__),
    (
        tfembed.TPUEmbeddingV0.embedding_lookup,
        THEIRS.TPUEmbeddingV0.embedding_lookup,
    ),
    (
        tfembed.TPUEmbeddingForServing.__init__,
        THEIRS.TPUEmbeddingForServing.__init__,
    ),
    (
        tfembed.TPUEmbeddingForServing.embedding_lookup,
        THEIRS.TPUEmbeddingForServing.embedding_lookup,
    ),
    (tfembed.TableConfig.__init__, THEIRS.TableConfig.__init__),
    (tfembed.FeatureConfig.__init__, THEIRS.FeatureConfig.__init__),
]


@pytest.mark.parametrize(
    ("ours", "theirs"), MIRRORED, ids=lambda f: f.__qualname__
)
def test_positional_arguments_are_tensorflows(ours, theirs):
    def names(function):
        return [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind is p.POSITIONAL_OR_KEYWORD
        ]

    # Newer versions of TensorFlow have more of them.
    expected = names(theirs)
    assert names(ours)[: len(expected)] == expected


def test_keras_is_imported_on_first_use():
    assert tfembed.keras.layers.DistributedEmbedding.__doc__
    with pytest.raises(AttributeError, match="no_such_name"):
        tfembed.no_such_name


def _shown_by_the_reference():
    """What each block of docs/api describes, and the name that it shows."""
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        for path, options in re.findall(
            r"(?m)^::: (\S+)\n((?:    .*\n)*)", page.read_text()
        ):
            heading = re.search(r"heading: (\S+)", options)
            yield path, heading[1] if heading else path


@pytest.mark.parametrize(("path", "shown"), _shown_by_the_reference())
def test_the_reference_shows_the_name_that_programs_write(path, shown):
    described = pkgutil.resolve_name(path)
    *modules, name = shown.split(".")

    assert pkgutil.resolve_name(shown) is described
    if isinstance(described, types.ModuleType):
        return
    for n in range(1, len(modules)):
        room = importlib.import_module(".".join(modules[:n]))
        assert getattr(room, name, None) is not described
