SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# What you may set: make test PYTEST_ARGS='-k redis -x'
PYTEST_ARGS ?=
WORKERS ?= 2
SHARD ?= 1/1
CHAOS_ARGS ?=
BENCH ?= run
BENCH_ARGS ?=
SPARKS ?= 4.0 4.1
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
    $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)

# Servers and installations of two targets would get in each other's way.
.NOTPARALLEL:

VENV := .venv
VENV_PEERS := .venv-peers
KEUSS := tests/interop/keuss_driver
PEERS := bench/peers
STARTED := $(shell date +%s)
say = @echo "==> [$$(( $$(date +%s) - $(STARTED) )) s] $(1)"

# Spark's workers take this interpreter, not the driver's; pyspark brings its own Spark; nothing listens to the network.
export PYSPARK_PYTHON = $(CURDIR)/$(VENV)/bin/python
export SPARK_LOCAL_IP = 127.0.0.1
unexport SPARK_HOME
# Each query starts processes of Python: they need not compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

# Tests start Spark often and leave it soon: what a JVM spends on getting faster it does not get back.
# And Spark's classes come from an archive, in half the time; where it cannot be used, Java says so, but not to stdout.
JVM := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=warning:stderr
TESTS := test test-all durations
$(TESTS) chaos compat notebooks: export SPARK_SUBMIT_OPTS = $(JVM) -XX:SharedArchiveFile=$(dir $(PYSPARK_PYTHON))../spark.jsa
$(TESTS) chaos compat notebooks: export SPARK_LAUNCHER_OPTS = $(JVM)

# Tests kill processes, not the machine: what they write may lie in memory, and waits for no disk. But only where there
# is plenty of it (8 GB), from which programs may be run too.
MEMORY := $(shell grep -s ' /dev/shm ' /proc/mounts | grep -qv noexec && df -Pk /dev/shm \
    | awk 'NR == 2 && $$4 > 8 * 1024 * 1024 {print "/dev/shm"}')
$(TESTS): export PYTEST_DEBUG_TEMPROOT = $(MEMORY)
$(TESTS): export SPARK_QUEUE_SERVICES_DATA = $(MEMORY:%=%/spark_queue$(subst /,-,$(CURDIR)))

.PHONY: help setup java demo $(TESTS) shard chaos lint format types notebooks dist services services-stop compat bench bench-peers constraints clean

help:  ## Show this help; times are those of 2 cores, without what a first run installs
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed-dev  ## Install everything for development into .venv; the other targets install what they need

java:  ## Check that there is a Java 17 or later for Spark; on Debian, as root, install one
	@major() { "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' || true; }; \
	fits() { [ "$$(major)" ] && [ "$$(major)" -ge 17 ]; }; \
	if fits; then echo "==> java: version $$(major) found"; exit 0; fi; \
	if [ "$${JAVA_HOME:-}" ]; then \
	    echo "JAVA_HOME=$$JAVA_HOME is not a Java 17 or later; set it to one, or type: unset JAVA_HOME" >&2; exit 1; \
	fi; \
	package=openjdk-17-jre-headless; \
	if ! command -v apt-get >/dev/null; then \
	    echo "Spark needs Java 17 or later: install it (on macOS: brew install openjdk@17) and set JAVA_HOME" >&2; exit 1; \
	elif [ "$$(id -u)" != 0 ]; then \
	    echo "Spark needs Java 17 or later: set JAVA_HOME to one, or type: sudo apt-get update && sudo apt-get install -y $$package" >&2; exit 1; \
	fi; \
	echo "==> java: Spark needs Java 17 or later, and there is none: no java on PATH, no JAVA_HOME"; \
	echo "==> java: installing it on this machine: apt-get update && apt-get install -y --no-install-recommends $$package"; \
	echo "==> java: to avoid this, press Ctrl-C, and set JAVA_HOME to a Java of your own or put it on PATH"; \
	[ ! -t 1 ] || sleep 5; \
	apt-get -qq update; \
	apt-cache show $$package >/dev/null 2>&1 || { package=default-jre-headless; echo "==> java: it is $$package here"; }; \
	DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$package >/dev/null; \
	fits || { echo "$$package is installed, yet 'java -version' shows no Java 17 or later" >&2; exit 1; }

demo: java $(VENV)/.installed-demo  ## Send 336,776 real flights through a graph of queues and check where each one went (90 seconds; QUICK=1: a tenth of them)
	$(call say,demo: flights through a graph of queues)
	@$(VENV)/bin/python jobs/demo.py $(if $(filter-out 0,$(QUICK)),--quick)

# $(call pytest,arguments): servers start, pytest runs, the servers stop. Tests of one group run in one worker.
pytest = $(VENV)/bin/python tests/services.py run $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup \
    --durations=15 $(1) $(PYTEST_ARGS)
of_tests := java $(VENV)/.installed-test $(VENV)/spark.jsa keuss rfq

test: $(of_tests)  ## Run the tests for every commit on real servers, which it starts and stops (11 minutes; PYTEST_ARGS='-k redis', WORKERS=0: in one process)
	$(call say,test: starting servers and running pytest)
	@$(call pytest,-m "not full")
	$(call say,test: all passed)

# How long each test took is recorded in DURATIONS, by which the shards take the same time.
DURATIONS := tests/durations.json
of_shard = $(if $(filter-out 1/1,$(SHARD)),--splits $(lastword $(subst /, ,$(SHARD))) --group $(firstword $(subst /, ,$(SHARD))) \
    --splitting-algorithm least_duration --durations-path $(DURATIONS))

test-all: shard $(of_tests)  ## Run all tests, on every store and layout (an hour), or one shard of them (SHARD=1/4: the first quarter, 16 minutes)
	$(call say,test-all: shard $(SHARD): starting servers and running pytest)
	@$(call pytest,$(of_shard))
	$(call say,test-all: shard $(SHARD): all passed)

shard:
	@[[ '$(SHARD)' =~ ^([1-9][0-9]{0,3})/([1-9][0-9]{0,3})$$ ]] && (( BASH_REMATCH[1] <= BASH_REMATCH[2] )) || \
	    { echo "SHARD must be i/n, with i from 1 to n, not '$(SHARD)'; for the first of four shards: make test-all SHARD=1/4" >&2; exit 2; }

durations: $(of_tests)  ## Run all tests, and record in tests/durations.json how long each takes, for SHARD (an hour)
	$(call say,durations: starting servers and running pytest)
	@failed=0; $(call pytest,--store-durations $(if $(PYTEST_ARGS),,--clean-durations) --durations-path $(DURATIONS)) || failed=$$?; \
	$(VENV)/bin/python -c 'import json, sys; [path] = sys.argv[1:]; found = json.load(open(path)); \
	    rounded = {name: round(seconds, 2) for name, seconds in sorted(found.items())}; \
	    open(path, "w").write(json.dumps(rounded, indent=0) + "\n")' $(DURATIONS); \
	exit $$failed

chaos: java $(VENV)/.installed-test $(VENV)/spark.jsa  ## Kill everything again and again, and count messages (hours; CHAOS_ARGS='--kills 300 --store redis --seed 7')
	$(call say,chaos: worlds of their own servers and of queries that are killed)
	@$(VENV)/bin/python -m tests.chaos $(CHAOS_ARGS)
	$(call say,chaos: every message came out exactly once)

lint: $(VENV)/.installed-tools  ## Check style and format with ruff, and prose with proselint (1 minute)
	$(call say,lint: ruff check and ruff format --check)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	$(call say,lint: words and sentences of docs and docstrings and messages)
	@$(VENV)/bin/python tests/project/prose.py

format: $(VENV)/.installed-tools  ## Mend style and format with ruff (seconds)
	$(call say,format: ruff check --fix and ruff format)
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

# Types are checked against those of the packages that the tests import.
types: $(VENV)/.installed-test $(VENV)/.installed-tools  ## Check types with mypy (1 minute)
	$(call say,types: mypy)
	@$(VENV)/bin/mypy

notebooks: java $(VENV)/.installed-notebooks $(VENV)/spark.jsa  ## Make the notebooks *.ipynb from their programs *.py, and run them (4 minutes)
	$(call say,notebooks: running them)
	@$(VENV)/bin/python notebooks/build.py

dist: $(VENV)/.installed-dist  ## Build the wheel and the sdist into dist/ and check them (15 seconds)
	$(call say,dist: building the wheel and the sdist)
	@rm -rf dist
	@$(VENV)/bin/python -m build --outdir dist .
	$(call say,dist: checking their metadata and description)
	@$(VENV)/bin/python -m twine check --strict dist/*
	$(call say,dist: $$(ls dist | tr '\n' ' ')are in dist/)

services: $(VENV)/bin/python  ## Start MongoDB and Redis for tests, on 127.0.0.1, and leave them running (seconds)
	$(call say,services: starting what does not run yet)
	@$(VENV)/bin/python tests/services.py start
	@$(VENV)/bin/python tests/services.py env

services-stop:  ## Stop the servers that `make services` started
	$(call say,services: stopping)
	@$(PYTHON) tests/services.py stop

compat: $(SPARKS:%=compat-%)  ## Run the tests of Spark on other versions of it (15 minutes each; SPARKS='4.0 4.1')

# Three of the benchmarks have peers in them, and one may be told to leave them out.
bench: java $(VENV)/.installed-bench $(if $(filter run layouts rest,$(BENCH)),$(if $(filter --no-peers,$(BENCH_ARGS)),,peers))  ## Compare the speed of the bare drivers, our client, Spark and other queues (hours); BENCH=sizes, hops, layouts, stages, latency, memory, growth, delivery, reads, exchanges, events, rest, idle, iterate or gate: something else (BENCH_ARGS=…)
	$(call say,bench: starting servers and running bench/$(BENCH).py)
	@$(VENV)/bin/python tests/services.py run $(VENV)/bin/python bench/$(BENCH).py $(BENCH_ARGS)

bench-peers: $(VENV)/.installed-bench peers  ## Measure the speed of other work queues alone (1 hour; BENCH_ARGS='--only rq,huey --messages 5000')
	$(call say,bench: starting servers and running bench/peers)
	@$(VENV)/bin/python tests/services.py run $(VENV)/bin/python bench/peers $(BENCH_ARGS)

constraints: | $(VENV)/bin/python  ## Renew constraints.txt, the versions of all packages, and show what changed; needs Python 3.11 (1 minute)
	$(call say,constraints: pip looks for a version of each package)
	@$(VENV)/bin/python tests/project/constraints.py

clean: services-stop  ## Remove everything that make made: environments, servers' data, caches
	$(call say,clean: removing environments and caches and data of servers)
	@rm -rf .venv .venv-spark* $(VENV_PEERS)* .services .demo $(KEUSS)/node_modules $(PEERS)/node_modules dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- how they are made -------------------------------------------------------------------------------------------------

%/bin/python:
	@[ "$(PYTHON)" ] || { echo "Python 3.11 or later is needed: install it, or type: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv $*

# $(call pip,folder,what to install): of what pip tells, leave a line or two for each package that was not there.
pip = $(1)/bin/python -m pip install --disable-pip-version-check --progress-bar off $(2) \
    | awk '!/^ *(Requirement already satisfied|Collecting|Obtaining|Installing (build|backend) dep|Checking|Getting req|Preparing|Created|Stored)/ \
        && !/\.metadata/ {print; fflush()}'

# The versions of packages, for all environments. One with another version of Spark does not get those of Spark.
CONSTRAINTS := constraints.txt
of_other_spark := <(grep -vE '^(pyspark|py4j)==' $(CONSTRAINTS))

# $(call install,folder,extras,what else,constraints): bring an environment up to date
# Spark tells its Python processes to take pyspark from a zip, where it is compiled anew by each of them, for a second;
# without the zip they have the same modules from beside it. Each query starts such a process.
define install
	@$(call pip,$(1),--constraint $(or $(4),$(CONSTRAINTS)) --editable '.[$(2)]' $(3))
	@rm -f $(1)/lib/python3.*/site-packages/pyspark/python/lib/pyspark.zip
endef

# What a target needs is an extra of pyproject.toml, or some, and has a stamp of its own in the one environment. An
# extra with others in it puts their stamps too.
EXTRAS_demo := cli,demo,graph,spark
WITHIN_test := demo dist notebooks
WITHIN_dev := demo dist notebooks test bench tools

$(VENV)/.installed-%: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(call say,setup: installing packages for $* into $(VENV))
	$(call install,$(VENV),$(or $(EXTRAS_$*),$*))
	@touch $(patsubst %,$(VENV)/.installed-%,$* $(WITHIN_$*))

# What there is of Spark in the tests. Links, exchanges and queues that are shared with the real keuss are among it.
OF_SPARK := tests/spark tests/runner tests/events/test_spark.py $(patsubst %,tests/project/test_%.py,demo docs jobs notebooks) \
    tests/interop/test_links.py tests/interop/test_keuss.py tests/interop/test_keuss_buckets.py

define compat_rules
.PHONY: compat-$(1)
compat-$(1): PYSPARK_PYTHON = $(CURDIR)/.venv-spark$(subst .,,$(1))/bin/python
compat-$(1): java .venv-spark$(subst .,,$(1))/.installed-test .venv-spark$(subst .,,$(1))/spark.jsa keuss
	$$(call say,compat: Spark $(1): starting servers and running $$(OF_SPARK))
	@$$(PYSPARK_PYTHON) tests/services.py run $$(PYSPARK_PYTHON) -m pytest -n $$(WORKERS) --dist loadgroup $$(OF_SPARK) $$(PYTEST_ARGS)
	$$(call say,compat: Spark $(1): all passed)

.venv-spark$(subst .,,$(1))/.installed-test: pyproject.toml $(CONSTRAINTS) | .venv-spark$(subst .,,$(1))/bin/python
	$$(call say,compat: Spark $(1): installing packages for test into $$(@D))
	$$(call install,$$(@D),test,'pyspark==$(1).*',$$(of_other_spark))
	@touch $$@
endef
$(foreach spark,$(SPARKS),$(eval $(call compat_rules,$(spark))))

# Where it is needed, the environment and Java come before it.
%/spark.jsa: pyproject.toml tests/spark_classes.py
	$(call say,setup: writing an archive of the classes that Spark loads)
	@SPARK_SUBMIT_OPTS='$(JVM)' SPARK_LAUNCHER_OPTS='$(JVM)' $(@D)/bin/python tests/spark_classes.py $@

# The real keuss and rfq, for the tests that share a queue with them: in Node.js, without which these are skipped, except
# in CI; and rfq in Python, in an environment of its own, which the benchmark's peers need too.
.PHONY: keuss rfq
rfq: $(VENV_PEERS)-rfq/.stamp
ifneq ($(shell command -v npm),)
keuss: $(KEUSS)/node_modules/.package-lock.json
else ifeq ($(CI),true)
keuss:
	@echo "npm is missing: install Node.js 18 or later (on Debian: apt-get install -y nodejs npm)" >&2; exit 1
else
keuss:
	$(call say,no npm: tests with the real keuss, and with rfq in JavaScript, are skipped; to run them: apt-get install -y nodejs npm)
endif

$(KEUSS)/node_modules/.package-lock.json $(PEERS)/node_modules/.package-lock.json: \
    %/node_modules/.package-lock.json: %/package.json %/package-lock.json
	$(call say,setup: npm installs what $* needs)
	@npm ci --prefix $* --no-audit --no-fund --loglevel=error
	@touch $@

# What bench/peers measures; peers that cannot be had are told there.
.PHONY: peers
peers: keuss rfq $(VENV_PEERS)/.stamp $(if $(shell command -v npm),$(PEERS)/node_modules/.package-lock.json)

$(VENV_PEERS)/.stamp: $(PEERS)/requirements.txt | $(VENV_PEERS)/bin/python
$(VENV_PEERS)-rfq/.stamp: $(PEERS)/requirements-rfq.txt | $(VENV_PEERS)-rfq/bin/python
$(VENV_PEERS)/.stamp $(VENV_PEERS)-rfq/.stamp:
	$(call say,setup: installing $< into $(@D))
	@$(call pip,$(@D),-r $<)
	@touch $@
