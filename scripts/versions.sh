#!/usr/bin/env bash
# Whether constraints.txt can be met with the oldest and with the newest transformers that it allows; nothing changes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
ends=$(sed -n 's/^transformers>=\([0-9.]*\),<=\([0-9.]*\)$/\1 \2/p' constraints.txt)
[ -n "$ends" ] || { echo "constraints.txt states no range transformers>=...,<=..." >&2; exit 1; }
for version in $ends; do
  # With those of its kin that ask for a version of huggingface_hub.
  "$venv/bin/python" -m pip install --dry-run --quiet --disable-pip-version-check -c constraints.txt \
    "transformers==$version" accelerate datasets peft tokenizers
done
