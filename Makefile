# Every target works from a fresh clone: it needs python3 (3.11+), pip and make; the rest is set up in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.set-up
CLIENTS := tests/javascript

# A Node that was brought is found where everything else is.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := $(VENV)

.DEFAULT_GOAL := help
.PHONY: help setup run check checked test tested coverage lint format bench soak docs pictures clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with everything the project needs

# The lock file decides every version; uv itself is the one thing pip brings. A Java, a Node
# and a browser come only where there are none.
$(STAMP): pyproject.toml uv.lock $(CLIENTS)/package-lock.json
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Tidelock needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV), once: every package of uv.lock, a Java and a Node where there are none: 1.6 GB, some minutes" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo "  Python packages; PySpark is the largest ..." >&2
	@without=$$($(BIN)/python -m tidelock.spark.java 2>/dev/null && echo --no-extra java); \
		node=$$(command -v npm >/dev/null || echo --group node); \
		$(BIN)/uv sync --frozen --all-extras $$without $$node --inexact $$(test -t 2 || echo --quiet)
	@$(BIN)/uv export --frozen --quiet --only-group clients --no-hashes --no-annotate --no-header --output-file $(VENV)/clients.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(VENV)/clients --requirements $(VENV)/clients.txt
# Clients in JavaScript that the tests subscribe with: tests say so where they are missing, and fail for it with CI=true.
	@echo "  clients in JavaScript, for the tests ..." >&2
	@npm ci --prefix $(CLIENTS) --silent || test "$$CI" != true
# A browser that the tests of the console look with, likewise: the machine's, else Playwright's own, else the system's.
	@echo "  a browser, for the tests ..." >&2
	@{ command -v chromium-headless-shell || command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null \
		|| $(BIN)/playwright install $$(test "$$(id -u)" != 0 || echo --with-deps) --only-shell chromium >/dev/null 2>&1 \
		|| { apt-get update -qq && { apt-get install -qq -y chromium-headless-shell || apt-get install -qq -y chromium; }; } >/dev/null 2>&1 \
		|| { echo "no Chromium could be had: the console's tests in a browser are left out" >&2; test "$$CI" != true; }
	@touch $@

run: setup ## run Tidelock here with a live feed, on http://127.0.0.1:8080
	@$(BIN)/tidelock demo

# What looks at the code and what runs it go side by side.
check: setup ## lint, types, pure rules and what the database promises: seconds, before every commit
	@$(MAKE) --no-print-directory -j 2 lint checked

# Properties are tried on a third of the examples that they have in `make test`.
checked: setup
	@EXAMPLES=0.3 $(BIN)/python -m pytest -m "check and not soak" -n 3

test: setup ## check, and everything else a change can break: what CI runs
	@$(MAKE) --no-print-directory -j 2 lint tested

tested: setup
	@$(BIN)/python -m pytest -m "not soak" -n 4

coverage: setup ## which lines the tests run, and which test runs which line; slower than make test
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -m "not soak" -n 3
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered --sort=cover | tail -n 40

lint: setup ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## rewrite the code in the project's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup ## measure everything that has a speed, beside its limits
	@$(BIN)/python -m bench ingest
	@$(BIN)/python -m bench fold
	@$(BIN)/python -m bench windows
	@$(BIN)/python -m bench latency
	@$(BIN)/python -m bench live
	@$(BIN)/python -m bench webhooks
	@$(BIN)/python -m bench mirror
	@$(BIN)/python -m bench load
	@$(BIN)/python -m bench cluster

soak: setup ## the long proofs: kills for minutes, thousands of examples; hours (docs/proofs.md)
	@$(BIN)/python -m pytest -m soak -s
# More examples take longer: the bound on hanging grows with them.
	@EXAMPLES=$${EXAMPLES:-20}; export EXAMPLES; \
		$(BIN)/python -m pytest -m "hypothesis and not soak" -n 2 --timeout=$$((300 * EXAMPLES))

docs: setup ## regenerate the reference pages and pictures
	@$(BIN)/python -m tidelock.settings > docs/settings.md
	@$(BIN)/python -m tidelock.reference commands > docs/commands.md
	@$(BIN)/python -m tidelock.reference api > docs/api.md
	@$(BIN)/python docs/pictures/event_time.py > docs/pictures/event-time.svg

# With TIDELOCK_DEMO_URL, of a demo that has run for a while: its charts have more to show.
pictures: setup ## retake the docs' pictures of the console, while the demo runs
	@mkdir -p docs/images
	@TIDELOCK_PICTURES=docs/images $(BIN)/python -m pytest -q tests/console/test_pictures.py -k every_page

clean: ## remove .venv and what tests left
	@rm -rf $(VENV) $(CLIENTS)/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
