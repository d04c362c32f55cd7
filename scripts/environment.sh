# Sourced by the other scripts: a virtual environment with the pinned versions that are tested.
venv=${CONFIDE_VENV:-.venv}
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "confide needs Python 3.11 or later; set PYTHON to one" >&2
  exit 2
}

install() {
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  # Python compiles what it imports; compiling every file of every package first would take a minute more.
  # The CPU build of torch is enough to try everything; where pip finds a GPU build it is used instead.
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e "$1"
}
