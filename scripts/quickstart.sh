#!/usr/bin/env bash
# Install confide into its own virtual environment and run `confide quickstart`.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
install .
"$venv/bin/confide" quickstart "$@"
