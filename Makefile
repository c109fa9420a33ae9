# make setup     what the tests and `make up` need, installed where it is missing
# make test      checks and tests, set up from nothing, within 15 minutes on two cores
# make test-all  the same and the long ones
# make check     format, lint, types, import contracts
.PHONY: setup check test test-all format bench
bin := .venv/bin

setup:
	@tools/setup

check: setup
	$(bin)/ruff format --check .
	$(bin)/ruff check .
	$(bin)/mypy
	$(bin)/lint-imports --no-logo

format: setup
	$(bin)/ruff format .
	$(bin)/ruff check --fix .

test: check
	$(bin)/pytest

test-all: check
	$(bin)/pytest -m "slow or not slow" --timeout 7200
