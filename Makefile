# TF=2.16.2 or TF=2.21.0 selects another TensorFlow, in an environment of its own.
TF ?= 2.20.0
VENV := $(if $(filter 2.20.0,$(TF)),.venv,.venv-$(TF))
PY := $(VENV)/bin/python
# KERAS=3.15.1 selects another Keras, which lies beside the environment's.
KERAS ?=
KERAS_PATH := $(if $(KERAS),PYTHONPATH=$(CURDIR)/$(VENV)/keras-$(KERAS))
# A test is Python on one core, mostly; each process needs about 1 GB.
PYTEST := $(KERAS_PATH) $(PY) -m pytest --numprocesses 2
# Slow tests are for an hour that is free: test-slow runs them, test-full too.
QUICK := -m 'not slow'
BAZEL := $(PY) build_tools/bazel.py
CXX_FILES = $(shell git ls-files '*.cc' '*.h' '*.inc')
export TF KERAS DATA

.PHONY: help setup demo test test-python test-slow test-full lint format wheel wheels sdist docs \
  notebooks bench bench-data bench-engines bench-estimator bench-lookup bench-table fuzz soak \
  soak-memory tpu-proof clean

help:
	@echo 'make demo [DATA=path-or-glob]  set up, then train, resume, export, serve'
	@echo 'make test [ARGS=...]           set up, then all tests but the slow ones'
	@echo 'make test-python [ARGS=...]    the Python tests of these alone'
	@echo 'make test-slow [ARGS=...]      the slow tests'
	@echo 'make test-full                 all tests, with many more random cases'
	@echo 'make lint | format             check | apply the style'
	@echo 'make wheel | sdist             what PyPI takes, in dist/'
	@echo 'make wheels                    a wheel for each minor version of TensorFlow'
	@echo 'make docs [ARGS=serve]         the site of docs/, in build/site'
	@echo 'make notebooks                 executes docs/notebooks, keeps the outputs'
	@echo 'make bench                     speed beside stock TensorFlow'
	@echo 'make bench-data                readers of files beside their peers'
	@echo 'make bench-lookup              lookups, training steps beside peers; judges'
	@echo 'make bench-engines             one step by each engine; judges'
	@echo 'make bench-table               hash tables beside their peers; judges'
	@echo 'make bench-estimator           a step beside the old TPUEstimator; judges'
	@echo 'make fuzz | soak               random operations, files | churn, at length'
	@echo 'make soak-memory [ARGS=kind]   bytes kept for good, by what is repeated'
	@echo 'make tpu-proof [FULL=1]        what is proven about TPUs without one'
	@echo 'make setup | clean             environment and build | remove both'
	@echo 'TF=2.16.2 | TF=2.21.0          with another TensorFlow (now $(TF))'
	@echo 'KERAS=3.15.1                   with another Keras, for tests'

setup:
	@scripts/setup

demo: setup
	$(PY) examples/criteo_dlrm.py $(if $(DATA),--data "$$DATA")

test: setup
	$(BAZEL) test --noshow_progress //cc/...
	HYPOTHESIS_PROFILE=ci $(PYTEST) $(QUICK) $(ARGS)

test-python: setup
	HYPOTHESIS_PROFILE=ci $(PYTEST) $(QUICK) $(ARGS)

test-slow: setup
	HYPOTHESIS_PROFILE=ci $(PYTEST) -m slow $(ARGS)

test-full: setup
	$(BAZEL) test --noshow_progress //cc/...
	HYPOTHESIS_PROFILE=full $(PYTEST) $(ARGS)

lint: setup
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	@$(VENV)/bin/clang-format --dry-run --Werror $(CXX_FILES)
	@scripts/setup clang
	PYTHON=$(PY) scripts/check_thread_safety
	$(PY) -m pytest -q tests/test_architecture.py

format: setup
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
	$(VENV)/bin/clang-format -i $(CXX_FILES)

wheel: setup
	PYTHON=$(CURDIR)/$(PY) scripts/wheel

wheels: setup
	@scripts/wheels $(ARGS)

sdist: setup
	$(PY) -m build --sdist --no-isolation --outdir dist

docs:
	scripts/docs $(ARGS)

notebooks: setup
	$(PY) build_tools/notebooks.py $(ARGS)

bench: setup
	$(PY) -m benchmarks $(ARGS)

bench-data: setup
	$(PY) -m benchmarks.data $(ARGS)

bench-lookup: setup
	$(PY) -m benchmarks.lookup $(ARGS)

bench-engines: setup
	$(PY) -m benchmarks.engines $(ARGS)

bench-estimator: setup
	$(PY) -m benchmarks.estimator $(ARGS)

bench-table: setup
	$(PY) -m benchmarks.table $(ARGS)

fuzz: setup
	$(BAZEL) test --noshow_progress --test_env=TFEMBED_FUZZ_OPERATIONS=1000000 \
	  --test_timeout=3600 //cc/core:table/table_fuzz_test
	HYPOTHESIS_PROFILE=full $(PY) -m pytest tests/property/test_variable_fuzz.py \
	  tests/checkpoint/test_crafted_files.py $(ARGS)

soak: setup
	$(PY) -m benchmarks.soak $(ARGS)

soak-memory: setup
	$(PY) -m benchmarks.soak.memory $(ARGS)

tpu-proof: setup
	$(PY) -m proof $(if $(FULL),--full) $(ARGS)

clean:
	if [ -d .bazel ]; then chmod -R u+w .bazel; fi
	rm -rf .bazel .venv .venv-* build dist *.egg-info
	rm -f tfembed/_build_info.py tfembed/ops/_tfembed_*.so
