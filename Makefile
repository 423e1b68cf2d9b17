# `make demo` and `make test` do all the set-up a fresh machine needs (Python 3.10+ with pip and venv).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready

.PHONY: demo test test-cluster lint nightly bench clean

demo: $(STAMP)
	$(BIN)/onward demo

test: $(STAMP) lint
	$(BIN)/python -m pytest -q

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Against a real cluster (KUBECONFIG): the transcript of API requests (also KUBEBUILDER_ASSETS), and jobs. Jobs whose pods
# run need ONWARD_TEST_IMAGE, an image with onward and torch; see docs/operator.md.
test-cluster: $(STAMP)
	ONWARD_TEST_KUBECONFIG="$(KUBECONFIG)" $(BIN)/python -m pytest -q -m "nightly or not nightly" tests/local/api/test_transcript.py \
		tests/local/jobs/test_acjob_anywhere.py tests/local/jobs/test_acjob_trains_anywhere.py

nightly: $(STAMP)
	$(BIN)/python -m pytest -q -m nightly

bench: $(STAMP)
	$(BIN)/python bench/run.py

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
