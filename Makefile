# make setup     install what the tests and `make up` need, where it is missing; quick when nothing is
# make up        run a federation of five brokers on this machine until Ctrl-C
# make test      run the checks and the tests that every change must pass: minutes on two cores, five more to set up
# make test-all  run all tests, the long ones and all examples too; fuzz once the sources and once the extensions
# make check     check format, lint, types and import contracts
# make format    format the code, and fix what the linter can fix
# make mutate    make small changes to the core, and list those that no test notices (300 of them, some 20 minutes)
# make bench     measure the figures of docs/benchmarks.md; needs an idle machine, and takes long
.PHONY: setup up check test test-all format mutate bench
bin := .venv/bin
# Keep Python's bytecode even where the environment forbids it. Without it each test process compiles all that it
# imports again: a collection of the tests took 12 s instead of 5 s.
unexport PYTHONDONTWRITEBYTECODE

setup:
	@tools/setup

up: setup
	$(bin)/hanse up --brokers 5

check: setup
	$(bin)/ruff format --check .
	$(bin)/ruff check .
	$(bin)/mypy
	$(bin)/lint-imports --no-logo

format: setup
	$(bin)/ruff format .
	$(bin)/ruff check --fix .

test: setup
	@tools/test

test-all: export HANSE_FUZZ_SECONDS ?= 600
test-all: export HANSE_TEST_EXAMPLES ?= 100
test-all: export HANSE_SETUP = all
test-all: check
	$(bin)/pytest -m "slow or not slow" --timeout 7200
	HANSE_TEST_COMPILED=1 $(bin)/pytest -m "slow or not slow" --timeout 7200 tests/fuzz

mutate: setup
	@tools/mutate --count 300

bench: setup
	$(bin)/python bench/run_all.py
