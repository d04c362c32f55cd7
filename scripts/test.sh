#!/usr/bin/env bash
# Everything the tests need, then the tests: its own virtual environment, lint, types, tests.
#   --fast   the fast half: no slow test, and none that starts processes of its own
#   --all    the exhaustive tests too: before a release
# Other arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
# What was not compiled when it was installed is kept once it is imported: hundreds of processes start in these tests.
unset PYTHONDONTWRITEBYTECODE
[ "${1:-}" != --fast ] || set -- -m "not slow and not subprocess" "${@:2}"
install ".[dev]"
bash scripts/versions.sh
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"
"$venv/bin/lint-imports"
"$venv/bin/python" -m pytest -n 2 --dist worksteal "$@"
