# The interface of the repository. Every target installs what it needs and can be run repeatedly.

PYTHON_BIN := .venv/bin/python
SECONDS ?= 60
NODES ?= 3
ONLY ?=
PYTEST_ARGS ?=
LOCK_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-process test-spark setup-spark soak walk-log explore e2e e2e-smoke deploy cluster-up cluster-down
.PHONY: bench lint format crds images images-previous image-spark binaries lock docs clean
.PHONY: lint-style lint-types lint-layers lint-tree lint-shell

help: ## list the targets
	@echo "Targets of Evenkeel; each one installs what it needs:"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## create .venv from requirements.lock (every other target does this too)
	@scripts/setup.sh

setup-spark: setup ## install Spark into .venv (test-spark does this too)
	@scripts/setup-spark.sh

demo: setup-spark ## run six stores, a million rows and many faults on this machine; FAST=1 for fewer rows
	@trap '' INT; $(PYTHON_BIN) -m demo  # it handles SIGINT itself

test: setup ## run the tests: only loopback, no compiler, under five minutes
	@echo "==> testing"
	@$(PYTHON_BIN) -m pytest --numprocesses auto --dist worksteal $(PYTEST_ARGS)

test-process: setup binaries ## test clusters of processes under kills, pauses and network faults
	@[ "$$(id -u)" != 0 ] || scripts/need.sh ip iptables unshare
	@echo "==> testing clusters of processes"
	@$(PYTHON_BIN) -m pytest tests/process tests/store tests/kubernetes -m "processes" $(PYTEST_ARGS)

test-spark: setup-spark ## test the Spark data source with a local Spark
	@echo "==> testing with Spark"
	@$(PYTHON_BIN) -m pytest tests/spark tests/repository/test_exports.py $(PYTEST_ARGS)

soak: setup ## simulate raft under faults for SECONDS=60
	@$(PYTHON_BIN) -m tests.raft.soak --seconds $(SECONDS)

walk-log: setup ## simulate the raft log on failing disks for SECONDS=60
	@$(PYTHON_BIN) -m tests.raft_log.walk --seconds $(SECONDS)

explore: setup ## explore the interleavings of the rebalance protocol for SECONDS=60
	@$(PYTHON_BIN) -m tests.explorer --seconds $(SECONDS)

e2e: setup binaries images-previous images image-spark ## test on a real Kubernetes, which is built first (once, about ten minutes)
	@scripts/build-binaries.sh spark-operator cert-manager
	@$(PYTHON_BIN) -m e2e.cluster prepare
	@echo "==> testing end to end"
	@$(PYTHON_BIN) -m pytest e2e $(PYTEST_ARGS)

e2e-smoke: setup binaries images ## run the shortest e2e test: install with Helm, create a table, write, scale, uninstall
	@$(PYTHON_BIN) -m e2e.cluster prepare
	@$(PYTHON_BIN) -m pytest e2e/test_smoke.py $(PYTEST_ARGS)

deploy: setup images ## deploy Evenkeel and a table on EVENKEEL_CLUSTER=netns|kind|current (with EVENKEEL_REGISTRY=...)
	@$(PYTHON_BIN) -m e2e.deploy

cluster-up: setup ## start a Kubernetes with NODES=3 nodes on this machine, as root, without registry or Docker
	@$(PYTHON_BIN) -m e2e.cluster up --nodes $(NODES)

cluster-down: setup ## remove that Kubernetes; EVENKEEL_CLUSTER=kind for the one of kind
	@$(PYTHON_BIN) -m e2e.cluster down

bench: $(if $(filter-out spark,$(ONLY)),setup,setup-spark) ## run all benchmarks, or one with ONLY=planner
	@scripts/build-binaries.sh etcd $(if $(filter-out operator,$(ONLY)),,cluster kwok)
	@$(PYTHON_BIN) -m pip install --quiet --disable-pip-version-check --require-hashes --requirement bench/requirements.lock
	@$(PYTHON_BIN) -m bench $(ONLY)

lint: lint-style lint-types lint-layers lint-tree lint-shell ## check style, types, import layers, forbidden content and shell scripts

lint-style: setup
	@echo "==> ruff"
	@$(PYTHON_BIN) -m ruff check --quiet
	@$(PYTHON_BIN) -m ruff format --check --quiet

lint-types: setup
	@echo "==> mypy"
	@$(PYTHON_BIN) -m mypy

lint-layers: setup
	@echo "==> import layers"
	@.venv/bin/lint-imports --no-logo

lint-tree: setup
	@echo "==> forbidden content"
	@$(PYTHON_BIN) scripts/check_tree.py

lint-shell: setup
	@echo "==> shellcheck"
	@.venv/bin/shellcheck -x scripts/*.sh e2e/cluster/*.sh images/*/*.sh .ci/run

format: setup ## format the code
	@$(PYTHON_BIN) -m ruff check --fix
	@$(PYTHON_BIN) -m ruff format

crds: setup ## generate crds/, the tables of docs/resources.md and the commands of docs/cli.md
	@echo "==> generating crds/, the tables of docs/resources.md and the commands of docs/cli.md"
	@$(PYTHON_BIN) -m evenkeel.model.crd crds/
	@$(PYTHON_BIN) -m evenkeel.model.resource_reference docs/resources.md
	@$(PYTHON_BIN) -m evenkeel.cli.cli_reference docs/cli.md

images: setup ## build the images of operator and store with docker, podman or buildah
	@scripts/build-image.sh operator
	@scripts/build-image.sh store

images-previous: setup ## build the images of the previous release, for tests of rolling updates
	@scripts/build-previous.sh

image-spark: setup ## build the image of Spark drivers and executors with the data source
	@scripts/build-image.sh spark

binaries: ## build etcd into the cache if it is missing; ONLY=cluster for a Kubernetes (about ten minutes)
	@scripts/build-binaries.sh $(or $(ONLY),etcd)

lock: setup ## resolve pyproject.toml into requirements.lock; LOCK_ARGS=--upgrade for newer versions
	@scripts/lock.sh $(LOCK_ARGS)

docs: setup ## build the documentation in build/docs
	@scripts/fetch-mermaid.sh
	@$(PYTHON_BIN) -m sphinx --fail-on-warning --quiet -c docs . build/docs
	@echo "==> build/docs/README.html"

clean: ## remove build results (not .venv, not the cache of binaries)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis bench/results
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
