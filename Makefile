SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# What you may set: make test PYTEST_ARGS='-k redis -x'
PYTEST_ARGS ?=
WORKERS ?= 2
CHAOS_ARGS ?=
BENCH ?= run
BENCH_ARGS ?=
SPARKS ?= 4.0 4.1
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
    $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)

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
test chaos compat notebooks: export SPARK_SUBMIT_OPTS = $(JVM) -XX:SharedArchiveFile=$(dir $(PYSPARK_PYTHON))../spark.jsa
test chaos compat notebooks: export SPARK_LAUNCHER_OPTS = $(JVM)

# Tests kill processes, not the machine: what they write may lie in memory, and waits for no disk. But only where there
# is plenty of it (8 GB), from which programs may be run too.
MEMORY := $(shell grep -s ' /dev/shm ' /proc/mounts | grep -qv noexec && df -Pk /dev/shm \
    | awk 'NR == 2 && $$4 > 8 * 1024 * 1024 {print "/dev/shm"}')
test: export PYTEST_DEBUG_TEMPROOT = $(MEMORY)
test: export SPARK_QUEUE_SERVICES_DATA = $(MEMORY:%=%/spark_queue$(subst /,-,$(CURDIR)))

.PHONY: help setup java demo test chaos lint format types notebooks services services-stop compat bench bench-peers clean

help:  ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.stamp  ## Make the environment .venv and install everything for development

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
	    echo "Spark needs Java 17 or later; type: sudo apt-get update && sudo apt-get install -y $$package" >&2; exit 1; \
	fi; \
	echo "==> no Java 17 or later: installing $$package with apt-get"; \
	apt-get -qq update; \
	apt-cache show $$package >/dev/null 2>&1 || package=default-jre-headless; \
	DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$package >/dev/null; \
	fits || { echo "$$package is installed, yet 'java -version' shows no Java 17 or later" >&2; exit 1; }

demo: setup java  ## Let 336,776 real flights flow through a graph of queues, and check where each one went
	$(call say,demo: flights through a graph of queues)
	@$(VENV)/bin/python jobs/demo.py

# A machine that is busy with something else may make a test late: it gets a second try, the run tells which ("RERUN"), and
# more than three in a run fail it. Whoever calls pytest himself gets none.
SECOND_TRY := --reruns 1 --reruns-delay 2 --max-suite-reruns 3 --rerun-show-tracebacks

test: setup java keuss rfq $(VENV)/spark.jsa  ## Run all tests against real servers, which it starts and stops (PYTEST_ARGS='-k redis', WORKERS=0: in one process)
	$(call say,tests: starting servers and running pytest)
	@$(VENV)/bin/python tests/services.py run $(VENV)/bin/python -m pytest -n $(WORKERS) $(SECOND_TRY) $(PYTEST_ARGS)
	$(call say,tests: all passed)

chaos: setup java $(VENV)/spark.jsa  ## Kill everything again and again, and count (CHAOS_ARGS='--kills 300 --store redis --seed 7')
	$(call say,chaos: worlds of their own servers and of queries that are killed)
	@$(VENV)/bin/python -m tests.chaos $(CHAOS_ARGS)
	$(call say,chaos: every message came out exactly once)

lint: setup  ## Check style and format with ruff
	$(call say,lint: ruff check and ruff format --check)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

format: setup  ## Mend style and format with ruff
	$(call say,format: ruff check --fix and ruff format)
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

types: setup  ## Check types with mypy
	$(call say,types: mypy)
	@$(VENV)/bin/mypy

notebooks: setup java $(VENV)/spark.jsa  ## Make the notebooks *.ipynb of their programs *.py, and run them
	$(call say,notebooks: running them)
	@$(VENV)/bin/python notebooks/build.py

services: setup  ## Start MongoDB and Redis for tests, on 127.0.0.1, and leave them running
	$(call say,services: starting what does not run yet)
	@$(VENV)/bin/python tests/services.py start
	@$(VENV)/bin/python tests/services.py env

services-stop:  ## Stop the servers that `make services` started
	$(call say,services: stopping)
	@$(PYTHON) tests/services.py stop

compat: $(SPARKS:%=compat-%)  ## Run the tests of Spark on other versions of it, 40 minutes or more each (SPARKS='4.0 4.1')

# Three of the benchmarks have peers in them, and one may be told to leave them out.
bench: setup java $(if $(filter run layouts rest,$(BENCH)),$(if $(filter --no-peers,$(BENCH_ARGS)),,peers))  ## Compare the bare drivers, our client, Spark and peers; BENCH=layouts, stages, latency, memory, growth, delivery, exchanges, events, rest or idle: something else (BENCH_ARGS=…)
	$(call say,bench: starting servers and running bench/$(BENCH).py)
	@$(VENV)/bin/python tests/services.py run $(VENV)/bin/python bench/$(BENCH).py $(BENCH_ARGS)

bench-peers: setup peers  ## Measure other work queues alone (BENCH_ARGS='--only rq,huey --messages 5000')
	$(call say,bench: starting servers and running bench/peers)
	@$(VENV)/bin/python tests/services.py run $(VENV)/bin/python bench/peers $(BENCH_ARGS)

clean: services-stop  ## Remove everything that make made: environments, servers' data, caches
	$(call say,clean: removing environments and caches and data of servers)
	@rm -rf .venv .venv-spark* $(VENV_PEERS)* .services .demo $(KEUSS)/node_modules $(PEERS)/node_modules dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- how they are made -------------------------------------------------------------------------------------------------

# $(call environment,folder,what else to install): make it, or bring it up to date
# Spark tells its Python processes to take pyspark from a zip, where it is compiled anew by each of them, for a second;
# without the zip they have the same modules from beside it. Each query starts such a process.
define environment
	@[ "$(PYTHON)" ] || { echo "Python 3.11 or later is needed: install it, or type: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@[ -x $(1)/bin/python ] || $(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[dev]' $(2)
	@rm -f $(1)/lib/python3.*/site-packages/pyspark/python/lib/pyspark.zip
	@touch $(1)/.stamp
endef

$(VENV)/.stamp: pyproject.toml
	$(call say,setup: installing into $(VENV); the first time takes some minutes)
	$(call environment,$(VENV))
	$(call say,setup: done)

# What there is of Spark in the tests. Links, exchanges and queues that are shared with the real keuss are among it.
OF_SPARK := tests/spark tests/interop/test_links.py tests/interop/test_keuss.py tests/interop/test_keuss_buckets.py

define compat_rules
.PHONY: compat-$(1)
compat-$(1): PYSPARK_PYTHON = $(CURDIR)/.venv-spark$(subst .,,$(1))/bin/python
compat-$(1): java keuss .venv-spark$(subst .,,$(1))/spark.jsa
	$$(call say,compat: Spark $(1): starting servers and running $$(OF_SPARK))
	@$$(PYSPARK_PYTHON) tests/services.py run $$(PYSPARK_PYTHON) -m pytest -n $$(WORKERS) $$(SECOND_TRY) $$(OF_SPARK) $$(PYTEST_ARGS)
	$$(call say,compat: Spark $(1): all passed)

.venv-spark$(subst .,,$(1))/.stamp: pyproject.toml
	$$(call say,compat: Spark $(1): installing into $$(@D); the first time takes some minutes)
	$$(call environment,$$(@D),'pyspark==$(1).*')
endef
$(foreach spark,$(SPARKS),$(eval $(call compat_rules,$(spark))))

# Order matters: Java may have to be installed first.
%/spark.jsa: %/.stamp | java
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

$(VENV_PEERS)/.stamp: $(PEERS)/requirements.txt
$(VENV_PEERS)-rfq/.stamp: $(PEERS)/requirements-rfq.txt
$(VENV_PEERS)/.stamp $(VENV_PEERS)-rfq/.stamp:
	$(call say,setup: installing $< into $(@D))
	@[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@touch $@
