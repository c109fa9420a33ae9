# make setup     what the tests and `make up` need, installed where it is missing; quick when nothing is
# make up        a federation of five brokers on this machine, until Ctrl-C
# make test      checks and the tests that every change passes, in some minutes on two cores; five more to set up
# make test-all  the same with all examples, and the long ones; fuzzing once on the sources and once on the extensions
# make check     format, lint, types, import contracts
# make format    formats, and mends what the linter can mend
# make mutate    small changes to the core, each of which a test has to notice (300 of them, some 20 minutes)
# make bench     the figures of docs/benchmarks.md, on a machine that does nothing else; takes its time
.PHONY: setup up check test test-all format mutate bench
bin := .venv/bin
# Python keeps what it compiled, also where the environment forbids it: without, each process of the tests compiles all
# that it imports once more (a collection of the tests took 12 s, 5 s with it).
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
