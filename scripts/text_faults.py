"""Faults between a text and a row's loss: settings, tokenizers, secrets, redaction."""

from fault import Fault

TEXT = [
    Fault(
        "11",
        "padding counts in a row's mean",
        "tasks.py::Task.row_loss",
        "losses.sum(1) / counted.sum(1).clamp(min=1)",
        "losses.mean(1)",
        "tests/test_tasks.py",
    ),
    Fault(
        "18",
        "unknown keys are accepted",
        "settings.py::Section",
        'ConfigDict(extra="forbid", strict=True, frozen=True)',
        'ConfigDict(extra="ignore", strict=True, frozen=True)',
        "tests/test_config.py",
    ),
    Fault(
        "26",
        "an empty encoding goes through",
        "models.py::load_tokenizer",
        "len(set(probe)) < 2",
        "False",
        "tests/test_bad_input.py tests/test_models.py",
    ),
    Fault(
        "27",
        "a row's loss divided by the tokens of the batch",
        "tasks.py::Task.row_loss",
        "losses.sum(1) / counted.sum(1).clamp(min=1)",
        "losses.sum(1) / counted.sum().clamp(min=1) * len(losses)",
        "tests/test_tasks.py",
    ),
    Fault(
        "secret",
        "a row that only begins or ends with a secret does not list it",
        "rows.py::Row.secrets",
        "m.start <= self.end and m.end >= self.start",
        "m.start < self.end and m.end > self.start",
        "tests/test_tagged_rows.py",
    ),
    Fault(
        "secret",
        "two spellings of one secret are two",
        "secrets/finders.py::_Numbers.name",
        "text = canonical(text)",
        "",
        "tests/secrets/test_finders.py",
    ),
    Fault(
        "secret",
        "an owner above the bound",
        "secrets/program.py",
        "def bound_greedily(offsets: np.ndarray, rows: np.ndarray, n_rows: int, cap: int) -> np.ndarray:\n"
        '    """Rows kept so that no unit has more than `cap` of them, and none could be added; bool[M].\n'
        "\n"
        "    The rule is fixed and reads the incidence alone: rows are taken in order of their number of owners, then of their\n"
        "    own number, and kept where every owner has room. A row without an owner is kept. Raises InputError if cap < 1.\n"
        '    """\n'
        "    if cap < 1:\n"
        '        raise InputError(f"rows_per_unit is {cap}: a unit needs at least 1 row")\n'
        "    owners = np.bincount(rows, minlength=n_rows)\n"
        "    incidence, _, free = _binding(offsets, rows, n_rows, np.full(len(offsets) - 1, float(cap)))\n"
        "    kept: np.ndarray = free > 0\n"
        '    order = np.argsort(owners, kind="stable")\n'
        "    order = order[~kept[order]]\n"
        "    room = [cap] * incidence.shape[0]\n"
        "    units, starts = incidence.indices.tolist(), incidence.indptr\n"
        "    for row, first, last in zip(\n"
        "        order.tolist(), starts[order].tolist(), starts[order + 1].tolist(), strict=True\n"
        "    ):\n"
        "        own = units[first:last]\n"
        "        if all(room[unit] for unit in own):\n"
        "            kept[row] = True\n"
        "            for unit in own:\n"
        "                room[unit] -= 1\n"
        "    return kept",
        "def bound_greedily(offsets: np.ndarray, rows: np.ndarray, n_rows: int, cap: int) -> np.ndarray:\n"
        "    cap += 1\n"
        '    """Rows kept so that no unit has more than `cap` of them, and none could be added; bool[M].\n'
        "\n"
        "    The rule is fixed and reads the incidence alone: rows are taken in order of their number of owners, then of their\n"
        "    own number, and kept where every owner has room. A row without an owner is kept. Raises InputError if cap < 1.\n"
        '    """\n'
        "    if cap < 1:\n"
        '        raise InputError(f"rows_per_unit is {cap}: a unit needs at least 1 row")\n'
        "    owners = np.bincount(rows, minlength=n_rows)\n"
        "    incidence, _, free = _binding(offsets, rows, n_rows, np.full(len(offsets) - 1, float(cap)))\n"
        "    kept: np.ndarray = free > 0\n"
        '    order = np.argsort(owners, kind="stable")\n'
        "    order = order[~kept[order]]\n"
        "    room = [cap] * incidence.shape[0]\n"
        "    units, starts = incidence.indices.tolist(), incidence.indptr\n"
        "    for row, first, last in zip(\n"
        "        order.tolist(), starts[order].tolist(), starts[order + 1].tolist(), strict=True\n"
        "    ):\n"
        "        own = units[first:last]\n"
        "        if all(room[unit] for unit in own):\n"
        "            kept[row] = True\n"
        "            for unit in own:\n"
        "                room[unit] -= 1\n"
        "    return kept",
        "tests/mechanisms/test_owners.py",
    ),
    Fault(
        "selective",
        "a mask is something to predict",
        "tasks.py::Task._targets",
        "nothing | (ahead == self.mask)",
        "nothing",
        "tests/test_tasks.py",
    ),
    Fault(
        "selective",
        "a row holds characters of the next one",
        "redaction/rows.py::Redactor._cut",
        "origin.of(end)",
        "origin.of(end) + 3",
        "tests/redaction/test_rows.py tests/test_selective_run.py",
    ),
    Fault(
        "selective",
        "what is held out is redacted, and a secret is looked for in it",
        "preparation.py::_Preparation._write",
        '[(at, label) for at, side, label in placed if side == "train"]',
        "[(at, label) for at, side, label in placed]",
        "tests/redaction/test_documents.py",
    ),
]
