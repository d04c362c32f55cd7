"""The examples run as they are, with fewer steps."""

import importlib.util
import io
import json
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml

from tests.command import World, confide, tiny_model
from tests.places import ROOT

EXAMPLES = ROOT / "examples"
FEWER = ("train.steps=1", "train.batch=4", "train.eval_on_start=false")


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, which is where one works."""
    found = Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))
    monkeypatch.chdir(found)
    monkeypatch.syspath_prepend(found / "chat")
    return found


def cells(notebook: Path) -> list[str]:
    return [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]


def test_the_notebook_runs_from_its_first_cell_to_its_last(examples: Path) -> None:
    names: dict[str, object] = {}
    heard = io.StringIO()
    few = f"{list(FEWER)}"
    with redirect_stdout(heard):
        for cell in cells(examples / "first-steps.ipynb"):
            exec(cell.replace('["train.steps=12"]', few), names)
    assert names["config"].train.steps == 1  # type: ignore[attr-defined]
    said = heard.getvalue()
    assert '"customer": "customer0"' in said
    assert re.search(r"The formal statement is user-level DP with epsilon = [1-8]", said), said
    assert "<|im_start|>assistant" in said
    assert (examples / "runs/chat/release/adapter_config.json").is_file()


def test_the_notebook_is_kept_without_what_it_printed() -> None:
    found = json.loads((EXAMPLES / "first-steps.ipynb").read_text())
    assert not [cell for cell in found["cells"] if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.parametrize("name", ["chat", "classification"])
def test_a_config_trains(examples: Path, name: str) -> None:
    import made_up

    talks = made_up.conversations(40)
    made_up.write(talks, Path("chats.jsonl"))
    made_up.write(made_up.tickets(talks), Path("tickets.jsonl"))
    done = confide("train", f"{name}/config.yaml", *FEWER)
    assert done.code == 0, done.err


def test_single_steps_are_taken_in_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path, tiny_model(tmp_path))
    spec = importlib.util.spec_from_file_location("library", EXAMPLES / "library.py")
    assert spec is not None
    assert spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    library.main(world.path, 2)
    said = capsys.readouterr().out
    assert re.findall(r"^step (\d): \d+ units", said, re.M) == ["0", "1"]
    assert "The formal statement is user-level DP" in said


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        if path.name == "__pycache__":  # left by a test that imports an example
            continue
        assert path.name == "README.md" or f"({path.name}" in listed, path.name


def test_the_manifest_is_one_and_torchrun_takes_its_arguments() -> None:
    from torch.distributed.run import get_args_parser

    service, job = yaml.safe_load_all((ROOT / "examples" / "kubernetes.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = get_args_parser().parse_args(container["command"][1:])
    assert (given.nnodes, given.no_python) == (str(job["spec"]["completions"]), True)
    assert int(given.nproc_per_node) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert [given.training_script, *given.training_script_args] == [
        "confide",
        "train",
        "/mnt/confide/mail.yaml",
    ]
    host = given.rdzv_endpoint.partition(":")[0]
    assert host == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert service["metadata"]["name"] == pod["subdomain"]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
