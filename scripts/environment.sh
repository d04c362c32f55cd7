# Sourced by the other scripts: a virtual environment with the pinned versions that are tested.
venv=${CONFIDE_VENV:-.venv}
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "confide needs Python 3.11 or later; set PYTHON to one" >&2
  exit 2
}

install() {
  if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv"
    # The pip that comes with Python 3.11 takes twice as long to choose among versions, but will do.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade -c constraints.txt pip || true
  fi
  # Python compiles what it imports; compiling every file of every package first would take a minute more.
  # The CPU build of torch is enough to try everything; where pip finds a GPU build it is used instead.
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e "$1"
}
