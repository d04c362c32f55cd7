"""Where measurements of a run are shown: TensorBoard in the run folder; MLflow and W&B if a config names them.

Measurements are private, but for the learning rate: losses, and even how long a step took, depend on whose rows were
drawn. TensorBoard's files stay in the run folder, so it is told everything. The others are told what is public, when
the run is over. With `tracking.allow_private` they are told everything as it happens.
"""

import importlib.util
import json
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from confide.config.schema import Config, Tracking
from confide.models.names import public_name
from confide.utils.errors import InputError
from confide.utils.files import write_text

RATE = "train/learning_rate"
"""The one measurement that hangs on no row."""

_RECORD = "tracking.json"
_NOT_TOLD = {
    "published_key",
    "tau",
}  # of the privacy section: the key of all noise; a look at private gradients


class Tracker(Protocol):
    """Something that shows the course of a run."""

    def settings(self, values: Mapping[str, Any]) -> None:
        """Show the settings of the run."""

    def scalars(self, values: Mapping[str, float], done: int) -> None:
        """Show measurements after `done` steps."""

    def guarantee(self, values: Mapping[str, Any], rates: Mapping[int, float]) -> None:
        """Show the guarantee of the released model, as its JSON has it, and the learning rate of each step."""

    def close(self) -> None:
        """Write what is left to write."""


class TensorBoard:
    """Event files in `folder`, from the first measurement on."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._writer: Any = None

    def settings(self, values: Mapping[str, Any]) -> None:
        """Show nothing: config.yaml is beside it."""

    def scalars(self, values: Mapping[str, float], done: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=done)
        for name, value in values.items():
            self._writer.add_scalar(name, value, done)

    def guarantee(self, values: Mapping[str, Any], rates: Mapping[int, float]) -> None:
        """Show nothing: guarantee.json is beside it."""

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """A run of MLflow: in a database of the run folder, or on the server that MLFLOW_TRACKING_URI names."""

    def __init__(self, tracking: Tracking, name: str, folder: Path, known: str | None):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # both are read when mlflow is imported
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow import MlflowClient

        own = (folder / "mlflow").absolute()
        if tracking.offline:
            own.mkdir(exist_ok=True)
            self._client = MlflowClient(tracking_uri=f"sqlite:///{own / 'runs.db'}")
        else:
            self._client = MlflowClient()
        if known is None:
            found = self._client.get_experiment_by_name(tracking.project)
            place = str(own / "artifacts") if tracking.offline else None
            experiment = (
                found.experiment_id if found else self._client.create_experiment(tracking.project, place)
            )
            known = self._client.create_run(experiment, run_name=name).info.run_id
        else:
            self._client.update_run(known, status="RUNNING")
        self.id: str = known

    def settings(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._client.log_param(self.id, name, value)

    def scalars(self, values: Mapping[str, float], done: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self.id, name, value, step=done)

    def guarantee(self, values: Mapping[str, Any], rates: Mapping[int, float]) -> None:
        self._client.log_text(self.id, json.dumps(values, indent=2) + "\n", "guarantee.json")
        for name in ("epsilon", "delta"):
            self._client.log_metric(self.id, f"guarantee/{name}", float(values[name]))

    def close(self) -> None:
        self._client.set_terminated(self.id)


class WandB:
    """A run of Weights & Biases: files for `wandb sync`, or sent at once. It is told nothing of machine or code."""

    def __init__(self, tracking: Tracking, name: str, folder: Path, known: str | None):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported
        import wandb

        self.id = known or uuid.uuid4().hex[:8]
        self._run = wandb.init(
            project=tracking.project,
            name=name,
            id=self.id,
            resume="allow",
            settings=wandb.Settings(
                mode="offline" if tracking.offline else "online",
                root_dir=str(folder.absolute()),
                console="off",
                silent=True,
                save_code=False,
                disable_code=True,
                disable_git=True,
                disable_job_creation=True,
                host="",
                username="",
                email="",
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )
        # W&B counts its own steps and refuses to go back, as a resumed run does.
        self._run.define_metric("*", step_metric="done")

    def settings(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def scalars(self, values: Mapping[str, float], done: int) -> None:
        self._run.log({"done": done, **values})

    def guarantee(self, values: Mapping[str, Any], rates: Mapping[int, float]) -> None:
        self._run.summary.update(
            {"guarantee": json.dumps(values), **{k: values[k] for k in ("epsilon", "delta")}}
        )

    def close(self) -> None:
        self._run.finish()


_SENDERS: dict[str, tuple[str, Callable[..., MLflow | WandB]]] = {
    "mlflow": ("MLflow", MLflow),
    "wandb": ("Weights & Biases", WandB),
}


class Frank:
    """Tells a tracker everything as it happens, and goes on without it if it fails.

    Args:
        say: called with a warning.
    """

    def __init__(self, tracker: Tracker, what: str, say: Callable[[str], None]):
        self._tracker, self._what, self._say = tracker, what, say
        self._fails = False

    def settings(self, values: Mapping[str, Any]) -> None:
        self._try(lambda: self._tracker.settings(values))

    def scalars(self, values: Mapping[str, float], done: int) -> None:
        self._try(lambda: self._tracker.scalars(values, done))

    def guarantee(self, values: Mapping[str, Any], rates: Mapping[int, float]) -> None:
        self._try(lambda: self._tracker.guarantee(values, rates))

    def close(self) -> None:
        self._try(self._tracker.close)

    def _try(self, tell: Callable[[], None]) -> None:
        if self._fails:
            return
        try:
            tell()
        except Exception as error:  # whatever its client raises; training matters more
            self._fails = True
            self._say(f"warning: {self._what} is told nothing more: {type(error).__name__}: {error}")


class Discreet:
    """Begins with a tracker when the run is over, and tells it what is public, all at once.

    A tracker notes when it is told, and when it began. Told as it happens, it would know how long each step took. Of a
    run that is not finished it is told nothing.

    Args:
        begin: begins with the tracker.
        values: the settings to tell.
        say: called with a warning.
    """

    def __init__(
        self, begin: Callable[[], Tracker], what: str, values: Mapping[str, Any], say: Callable[[str], None]
    ):
        self._begin, self._what, self._values, self._say = begin, what, values, say

    def settings(self, values: Mapping[str, Any]) -> None:
        """Tell nothing yet."""

    def scalars(self, values: Mapping[str, float], done: int) -> None:
        """Tell nothing: it is private, or comes at the end."""

    def guarantee(self, values: Mapping[str, Any], rates: Mapping[int, float]) -> None:
        try:
            tracker = self._begin()
            tracker.settings(self._values)
            for done, rate in rates.items():
                tracker.scalars({RATE: rate}, done)
            tracker.guarantee(values, {})
            tracker.close()
        except Exception as error:  # whatever its client raises; the run is finished
            self._say(f"warning: {self._what} could not be told of this run: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Tell nothing: a run that is not finished is not told of."""


def trackers_of(
    config: Config, folder: Path, say: Callable[[str], None], tells: bool = True
) -> list[Tracker]:
    """Return the trackers of a run: TensorBoard, and those that the config names. A resumed run goes on in them.

    Args:
        folder: of the run.
        say: called with a warning.
        tells: False for a run that nobody may be told of, such as a trial of a sweep.

    Raises:
        InputError: a tracker is not installed, or cannot begin.
    """
    tracking, record = config.tracking, folder / _RECORD
    found: list[Tracker] = [TensorBoard(folder / "tensorboard")]
    for kind in dict.fromkeys(tracking.to if tells else ()):
        what, begins = _SENDERS[kind]
        check_ready(tracking, kind)

        def begin(kind: str = kind, begins: Callable[..., MLflow | WandB] = begins) -> MLflow | WandB:
            known = _read(record)
            place = f"{kind} offline" if tracking.offline else kind
            begun = begins(tracking, Path(config.run).name or "run", folder, known["ids"].get(place))
            known["ids"][place] = begun.id
            if tracking.allow_private and kind not in known["private"]:
                known["private"].append(kind)
            write_text(record, json.dumps(known) + "\n")
            return begun

        _read(record)  # damaged, it is refused before the run
        if not tracking.allow_private:
            found.append(Discreet(begin, what, _settings(config), say))
            continue
        try:
            frank = Frank(begin(), what, say)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"tracking.to: {what} could not begin: {type(error).__name__}: {error}"
            ) from error
        frank.settings(_settings(config))
        found.append(frank)
    return found


def check_ready(tracking: Tracking, kind: str) -> None:
    """Check that a tracker is installed, and that it is known where to send to.

    Raises:
        InputError: it is not.
    """
    if importlib.util.find_spec(kind) is None:
        raise InputError(f"tracking.to: {kind} is not installed: pip install 'confide[{kind}]'")
    if kind == "mlflow" and not tracking.offline and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise InputError(
            "tracking.offline: false needs the server in MLFLOW_TRACKING_URI, which is not set; with tracking.offline: "
            "true MLflow's files stay in the run folder"
        )


def told_private(folder: Path) -> str:
    """Return the names of the trackers that were told private measurements of a run; empty if there are none."""
    record = _read(folder / _RECORD)
    return " and ".join(_SENDERS[kind][0] for kind in record["private"] if kind in _SENDERS)


def _read(record: Path) -> dict[str, Any]:
    """Return what is known of a run's trackers: the id of its run in each, and who was told private measurements."""
    try:
        found = json.loads(record.read_text("utf-8"))
        return {"ids": dict(found["ids"]), "private": list(found["private"])}
    except FileNotFoundError:
        return {"ids": {}, "private": []}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{record} is damaged, and it says who was told of this run: put it back if you can"
        ) from error


def _settings(config: Config) -> dict[str, Any]:
    """Return settings that say nothing of the text: what is trained and how, without the places of files."""
    found: dict[str, Any] = {"model": public_name(config.model), "task": config.task}
    for section in ("privacy", "train", "adapter", "base"):
        values = getattr(config, section).model_dump(mode="json")
        found |= {
            f"{section}.{name}": value
            for name, value in values.items()
            if value is not None and not (section == "privacy" and name in _NOT_TOLD)
        }
    return found
