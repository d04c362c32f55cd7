"""What several files of tests about models need."""

import pytest

from tests import small
from tests.models.bases import WIDE


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("bases")
    found = {}

    def get(kind: str):
        task = "classification" if kind == "roberta" else "causal-lm"
        if kind not in found:
            changes = {"n_embd": 64} if kind == "gpt2" else dict(WIDE)
            if task == "classification":
                changes["num_labels"] = 3
            found[kind] = small.saved(root / kind, kind, task, **changes), task
        return found[kind]

    return get
