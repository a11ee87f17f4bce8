# One word each: make help. Everything is set up in .venv; nothing is written outside this checkout.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
PY := $(VENV)/bin/python
PROTO := proto/lakestore/v1/lakestore.proto
PB2 := lakestore/v1/lakestore_pb2.py
ARGS ?=
MINUTES ?= 5
SIMULATION_SECONDS = $(shell awk 'BEGIN { print $(if $(HOURS),$(HOURS) * 60,$(MINUTES)) * 12 }')
SUITE_MINUTES = $(shell awk 'BEGIN { print $(if $(HOURS),$(HOURS) * 60,$(MINUTES)) * 0.8 }')
unexport PYTHONDONTWRITEBYTECODE  # else every server, tool and worker compiles the whole product when it starts

.PHONY: help setup check programs proto demo test long crash jepsen lint format bench growth docs site wheel clean

help:  ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: check $(VENV)/.ready $(PB2)  ## make .venv with everything in it, .venv/bin/lakestore included

demo: setup  ## run the whole story once and check it (under three minutes)
	$(VENV)/bin/lakestore demo $(ARGS)

test: programs  ## run the tests, two files at a time; ARGS="-k name" picks some, ARGS="-n 0 --pdb" debugs
	$(PY) -m pytest -n 2 --dist loadfile $(ARGS)

long: programs  ## the tests that make test leaves out, with new random cases each time
	LAKESTORE_EXPLORE=1 $(PY) -m pytest -m long $(ARGS)

crash: setup  ## power cuts, kills and flipped bits at every crash point, with many outcomes each (an hour)
	LAKESTORE_EXPLORE=1 LAKESTORE_CRASH_SEEDS=$${SEEDS:-8} LAKESTORE_FLIPS=$${FLIPS:-200} LAKESTORE_MODEL_EXAMPLES=$${EXAMPLES:-300} \
	$(PY) -m pytest tests/model tests/promises/test_damage_is_found.py tests/unit/index/test_index_faults.py \
	tests/promises/test_a_full_disk_heals.py tests/promises/test_acknowledged_is_durable.py $(ARGS)

jepsen: setup  ## break it for five minutes, look for anomalies; HOURS=8, SEED=… does a run again, MUTANTS=1
ifdef MUTANTS
	$(PY) -m jepsen mutants $(ARGS)
else ifdef SEED
	$(PY) -m jepsen run --seed $(SEED) $(ARGS)
else
	$(PY) -m tests.simulation --jobs 2 --seconds $(SIMULATION_SECONDS)
	$(PY) -m jepsen suite --minutes $(SUITE_MINUTES) $(ARGS)
endif

lint: setup  ## ruff, formatting and mypy
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

format: setup  ## let ruff format and sort imports
	$(VENV)/bin/ruff check --select I --fix
	$(VENV)/bin/ruff format

bench: setup  ## measure ingest, look-ups, tiering and reads
	$(PY) -m $(if $(filter growth,$(MAKECMDGOALS)),tests.bench.growth.command,tests.bench) $(ARGS)

growth: bench  ## make bench growth: how speed, disk and memory go with the number of keys

docs: setup  ## write the reference pages of docs/ from the code
	$(PY) -m tests.test_docs

site: setup  ## build the documentation as a site: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet

proto: $(PB2)  ## generate lakestore/v1/*_pb2* from proto/

wheel: setup  ## build dist/lakestore-….whl, which servers and images install
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation -w dist .
	@ls dist/lakestore-*.whl

clean:  ## remove .venv, generated code and caches
	rm -rf $(VENV) build dist *.egg-info lakestore/v1/lakestore_pb2* .mypy_cache .pytest_cache .ruff_cache .hypothesis

check:  ## see whether Python and a JDK are there; on Debian as root the JDK is installed
	@test -n "$(PYTHON)" || { echo "Lakestore needs Python 3.11 or newer: install python3 (3.11+)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || test -x $(PY) || \
		{ echo "Lakestore needs Python's venv module: install python3-venv" >&2; exit 1; }
	@sh -c '$(JAVA_OK)' || { $(JAVA_INSTALL); sh -c '$(JAVA_OK)'; } || \
		{ echo "Lakestore needs a JDK 17 or newer: install one, or set JAVA_HOME to it" >&2; exit 1; }

programs: setup  ## see whether Chromium and PostgreSQL are there for tests; on Debian as root they are installed
	@$(PY) -m tests.support.browser && $(PY) -m tests.support.postgres

# The first number of the version, as Spark will find it: JAVA_HOME before PATH.
JAVA_OK = java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; \
	major=$$($$java -version 2>&1 | sed -n "s/.*version \"\([0-9]*\).*/\1/p" | head -n 1); \
	test "$${major:-0}" -ge 17
JAVA_INSTALL = if test "$$(id -u)" = 0 && test -f /etc/debian_version; then \
	echo "installing a JDK (apt-get)"; apt-get update -qq >/dev/null; \
	for jdk in openjdk-17-jdk-headless default-jdk-headless; do \
	apt-get install -y -qq $$jdk >/dev/null && break; done; fi

$(VENV)/.installed: requirements.lock
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	touch $@

$(PB2): $(PROTO) | $(VENV)/.installed
	PATH=$(CURDIR)/$(VENV)/bin:$$PATH $(PY) -m grpc_tools.protoc -Iproto \
		--python_out=. --grpc_python_out=. --mypy_out=quiet:. $(PROTO)
	touch $@

$(VENV)/.ready: $(VENV)/.installed pyproject.toml setup.py | $(PB2)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@
