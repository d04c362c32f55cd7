#!/usr/bin/env bash
# Everything the tests need, then the tests: its own virtual environment, lint, types, tests.
#   --browser  install a browser too, for the tests that open a page
#   --fast     the fast half: no slow test, and none that starts processes of its own
#   --all      the exhaustive tests too: before a release
# Other arguments go to pytest. What does not wait for each other runs side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
# What was not compiled when it was installed is kept once it is imported: hundreds of processes start in these tests.
unset PYTHONDONTWRITEBYTECODE
browser=
if [ "${1:-}" = --browser ]; then
  shift
  bash scripts/browser.sh &
  browser=$!
fi
[ "${1:-}" != --fast ] || set -- -m "not slow and not subprocess" "${@:2}"
install ".[dev]"
bash scripts/versions.sh &
versions=$!
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/lint-imports"
MYPY_NUM_WORKERS=2 "$venv/bin/mypy"
wait "$versions"
[ -z "$browser" ] || wait "$browser"
"$venv/bin/python" -m pytest -n 2 --dist worksteal "$@"
