# `make demo` and `make test` do all the set-up a fresh machine needs (Python 3.10+ with pip and venv).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools

.PHONY: demo test test-cluster lint nightly bench clean

demo: $(STAMP)
	$(BIN)/onward demo

# A test of real processes can lose a race on a machine that is busy with other work: what failed is run once more, by
# itself, and said to be unsteady. What fails twice has failed, and so has a run in which more than a few failed.
test: $(TOOLS) lint
	$(BIN)/python -m pytest -q || { [ $$? -eq 1 ] && $(BIN)/python -m pytest -q --lf --lfnf none --once-more; }

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What a user of the API meets, against a real kube-apiserver: the transcript of requests (KUBECONFIG, or
# KUBEBUILDER_ASSETS), and with KUBECONFIG the stories of kubectl and the Python client, and jobs. Jobs whose pods run
# need ONWARD_TEST_IMAGE, an image with onward and torch; see docs/operator.md.
API_TESTS := $(addprefix tests/local/api/test_,transcript.py kubectl.py python_client.py)
JOB_TESTS := $(addprefix tests/local/jobs/test_acjob_,anywhere.py trains_anywhere.py)
test-cluster: $(TOOLS)
	ONWARD_TEST_KUBECONFIG="$(KUBECONFIG)" $(BIN)/python -m pytest -q $(API_TESTS)
	ONWARD_TEST_KUBECONFIG="$(KUBECONFIG)" $(BIN)/python -m pytest -q -m "nightly or not nightly" $(JOB_TESTS)

# Most of these tests wait most of the time, so three files are worked on at once; what fails is run once more, as above.
nightly: $(TOOLS)
	$(BIN)/python -m pytest -q -m nightly -n 3 --dist loadfile --durations 50 || \
	{ [ $$? -eq 1 ] && $(BIN)/python -m pytest -q -m nightly --lf --lfnf none --once-more; }

bench: $(STAMP)
	$(BIN)/python bench/run.py

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

# kubectl and ip, which some tests need: got where they are missing and that can be done; else those tests are skipped.
$(TOOLS): $(STAMP) tests/machine.py
	$(BIN)/python tests/machine.py
	touch $@

clean:
	rm -rf $(VENV)
