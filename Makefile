# One word each: make help. Everything is set up in .venv; nothing is written outside this checkout.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
PY := $(VENV)/bin/python
PROTO := proto/lakestore/v1/lakestore.proto proto/lakestore/v1/flight.proto
PB2 := lakestore/v1/lakestore_pb2.py
MINUTES ?= 5
SIMULATION_SECONDS = $(shell awk 'BEGIN { print $(if $(HOURS),$(HOURS) * 60,$(MINUTES)) * 12 }')
SUITE_MINUTES = $(shell awk 'BEGIN { print $(if $(HOURS),$(HOURS) * 60,$(MINUTES)) * 0.8 }')
unexport PYTHONDONTWRITEBYTECODE  # else every server, tool and worker compiles the whole product when it starts

.PHONY: help setup develop lock check machine programs proto demo test long crash jepsen lint format bench lake contract erase sql growth peers docs site wheel clean

help:  ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: machine $(VENV)/.ready $(PB2)  ## make .venv with what runs, .venv/bin/lakestore included

develop: setup $(VENV)/.developed  ## add what tests, linters and the documentation need

demo: setup  ## run the whole story once and check it (under three minutes)
	$(VENV)/bin/lakestore demo $(ARGS)

check: develop  ## the unit tests of what changed since main, in under two minutes
	$(PY) -m pytest -n 2 --dist loadfile $$($(PY) -m tests.support.changed) $(ARGS)

test: programs  ## run the tests, two files at a time; ARGS="-k name" picks some, ARGS="-n 0 --pdb" debugs
	$(PY) -m pytest -n 2 --dist loadfile --max-worker-restart 0 -o faulthandler_exit_on_timeout=true $(ARGS)

long: programs  ## the tests that make test leaves out, and all properties, with new random cases each time
	LAKESTORE_EXPLORE=1 $(PY) -m pytest -m "long or hypothesis" $(ARGS)

crash: develop  ## power cuts, kills and flipped bits at every crash point, with many outcomes each (an hour)
	LAKESTORE_EXPLORE=1 LAKESTORE_CRASH_SEEDS=$${SEEDS:-8} LAKESTORE_FLIPS=$${FLIPS:-200} LAKESTORE_MODEL_EXAMPLES=$${EXAMPLES:-300} \
	$(PY) -m pytest tests/model tests/promises/test_damage_is_found.py tests/unit/index/test_index_faults.py \
	tests/promises/test_a_full_disk_heals.py tests/promises/test_acknowledged_is_durable.py $(ARGS)

jepsen: develop  ## break it for five minutes, look for anomalies; HOURS=8, SEED=… does a run again, MUTANTS=1
ifdef MUTANTS
	$(PY) -m jepsen mutants $(ARGS)
else ifdef SEED
	$(PY) -m jepsen run --seed $(SEED) $(ARGS)
else
	$(PY) -m tests.simulation --jobs 2 --seconds $(SIMULATION_SECONDS)
	$(PY) -m jepsen suite --minutes $(SUITE_MINUTES) $(ARGS)
endif

lint: develop  ## ruff, formatting and mypy
	$(VENV)/bin/ruff check && $(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

format: develop  ## let ruff format and sort imports
	$(VENV)/bin/ruff check --select I --fix && $(VENV)/bin/ruff format

bench: develop  ## measure ingest, look-ups, tiering and reads
	$(PY) -m $(if $(filter growth,$(MAKECMDGOALS)),tests.bench.growth.command,$(if $(filter peers,$(MAKECMDGOALS)),tests.bench.peers,tests.bench)) $(or $(ARGS),$(if $(filter lake,$(MAKECMDGOALS)),lake stores small-tables freshness) $(filter contract erase sql,$(MAKECMDGOALS)))
lake: bench  ## make bench lake: tiering and reads, on an S3 server too, with many tables, and how fresh the lake is
contract: bench  ## make bench contract: what the rules of a contract cost at a write
erase: bench  ## make bench erase: time and bytes of an erasure of 1,000 of 10 M keys
sql: bench  ## make bench sql: key queries and scans through the ports of Postgres and Flight SQL
peers: bench  ## make bench peers: beside Kafka, Fluss and others; ARGS="log-append" runs one workload
growth: bench  ## make bench growth: how speed, disk and memory go with the number of keys
docs: develop  ## write the reference pages of docs/ from the code
	$(PY) -m tests.test_docs

site: develop  ## build the documentation as a site: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet

proto: $(PB2)  ## generate lakestore/v1/*_pb2* from proto/

wheel: setup  ## build dist/lakestore-….whl, which servers and images install
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation -w dist . && ls dist/lakestore-*.whl

clean:  ## remove .venv, generated code and caches
	rm -rf $(VENV) build dist *.egg-info lakestore/v1/*_pb2* .mypy_cache .pytest_cache .ruff_cache .hypothesis

machine:  ## see whether Python is there; Java comes from a wheel if the machine has none
	@test -n "$(PYTHON)" || { echo "Lakestore needs Python 3.11 or newer: install python3 (3.11+)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || test -x $(PY) || \
		{ echo "Lakestore needs Python's venv module: install python3-venv" >&2; exit 1; }

programs: develop  ## see whether Chromium, PostgreSQL and Node are there for tests; on Debian as root they are installed
	@$(PY) -m tests.support.browser && $(PY) -m tests.support.postgres && $(PY) -m tests.support.node_postgres

lock: develop  ## write the lock files anew from pyproject.toml, with the pins that they have
	$(COMPILE) $(RUNNING:%=--extra %) -o requirements.lock
	$(COMPILE) --all-extras -c requirements.lock -o requirements-dev.lock

RUNNING := server spark kafka catalogs otel duckdb java checkout
COMPILE := $(VENV)/bin/uv pip compile -q pyproject.toml --generate-hashes --no-emit-index-url --no-header --no-annotate

# uv asks the public index; if that fails, pip installs the same pins. pyspark is built from source: jars stored in its wheel save 16 s.
define INSTALL
	@test -x $(PY) || $(PYTHON) -m venv $(VENV); began=$$(date +%s); echo "downloading what $< names"; \
	export DIST_EXTRA_CONFIG=$(CURDIR)/$(VENV)/.stored.cfg; printf '[bdist_wheel]\ncompression = stored\n' > $$DIST_EXTRA_CONFIG; \
	{ $(PY) -m pip install -q --disable-pip-version-check "$$(sed -n 's/^\(uv==[0-9.]*\).*/\1/p' $<)" 2>/dev/null && \
	UV_CACHE_DIR=$(CURDIR)/$(VENV)/.uv $(VENV)/bin/uv pip install -q --no-deps --python $(PY) -r $< 2>/dev/null || \
	$(PY) -m pip install -q --disable-pip-version-check --no-deps --no-compile -r $<; } && rm -rf $(VENV)/.uv && \
	echo "installed in $$(($$(date +%s) - began)) s" && touch $@
endef

$(VENV)/.installed: requirements.lock
	$(INSTALL)

$(VENV)/.developed: requirements-dev.lock | $(VENV)/.installed
	$(INSTALL)

$(PB2): $(PROTO) | $(VENV)/.installed
	PATH=$(CURDIR)/$(VENV)/bin:$$PATH $(PY) -m grpc_tools.protoc -Iproto \
		--python_out=. --grpc_python_out=. --mypy_out=quiet:. $(PROTO)
	touch $@

$(VENV)/.ready: $(VENV)/.installed pyproject.toml setup.py | $(PB2)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@
