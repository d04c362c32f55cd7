#!/usr/bin/env bash
# Everything the tests need, then the tests: its own virtual environment, lint, types, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
install ".[dev]"
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"
"$venv/bin/python" -m pytest -n 2 "$@"
