"""The part that all of confide's trainers share: transformers' Trainer around confide's loop.

Nothing about privacy is decided here. Data, mechanism, noise, steps and the guarantee come from `confide.runs`, as they
do for `confide train`; Trainer's callbacks, logs, evaluations and checkpoints are put around each step.
"""

import contextlib
import copy
import functools
import json
import math
import shutil
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, default_data_collator
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput, speed_metrics
from transformers.utils import logging

from confide.config import registry
from confide.config.schema import Config
from confide.distributed.ranks import Ranks
from confide.integrations.arguments import config_of, scheduler_of, sections_of
from confide.integrations.eval_units import Comparison, refuse_choice
from confide.integrations.refusals import refuse, refuse_overrides, refuse_senders, senders
from confide.integrations.rows import TOKENS, Padding, Rows, tokenised
from confide.integrations.trainer_run import STATE, Logged, TrainerRun
from confide.models import sound
from confide.models.fast.activations import install_fast_layers
from confide.privacy.guarantee import Guarantee
from confide.privacy.mechanisms.statement import recheck_claim
from confide.privacy.sampling import Draw, StopTraining, bins_of
from confide.runs.checkpoints import Checkpoints
from confide.runs.folder import differences
from confide.runs.given import Given
from confide.runs.job import Job
from confide.runs.loop import Loop, opened
from confide.training.tasks import Loss
from confide.utils.errors import InputError
from confide.utils.files import write_text

logger = logging.get_logger(__name__)

_LOGGED = (
    "the losses of training rows, which Trainer logs: they are in log_history, in trainer_state.json, in the "
    "*_results.json of save_metrics and wherever report_to writes; and what a callback decides from them"
)
_EVALUATED = "figures made from eval_dataset, and what is decided from them, such as when to stop"
_TIMES = ("_runtime", "_per_second", "_time")
_SENT = "how long steps took, for whoever is told of each as it is taken (report_to)"
_TOKENISED = "each row of the data set came as token ids and is cut into rows of at most {} tokens"


class PrivateLoop(Trainer):  # type: ignore[misc]
    """Gives a Trainer confide's loop. It stands before another kind of Trainer among the bases of a class."""

    args: Any
    model: Any
    processing_class: Any
    eval_dataset: Any
    control: Any

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        privacy: Any = None,
        loss: Loss | None = None,
        log_private: bool = True,
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        **parameters: Any,
    ):
        refuse_overrides(type(self), self._ours())
        args = self._arguments(args)
        refuse(args, parameters, model, log_private)
        if args.gradient_checkpointing or getattr(args, "activation_checkpointing", None):
            for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
                if hasattr(args, name):
                    setattr(args, name, {"use_reentrant": False, **(getattr(args, name) or {})})
        super().__init__(model=model, args=args, **parameters)
        _widen(self.model)
        if self.processing_class is None or not hasattr(self.processing_class, "all_special_ids"):
            raise InputError("processing_class: give the tokenizer")
        if self.train_dataset is None:
            raise InputError("train_dataset: there is nothing to train on")
        self.log_private, self._own_loss, self._own_optimizer = log_private, loss, optimizer_cls_and_kwargs
        self.rows = Rows(self.train_dataset)
        self._privacy = None if privacy is None else copy.deepcopy(sections_of(privacy))
        self.confide_config = config_of(self._privacy, self.args, self.model, self._members, **self._fields())
        facts = registry.task_facts(self.confide_config.task)
        self.rows.check(self.confide_config, facts.is_causal)
        if Rows(parameters["train_dataset"]).tokenised and not facts.has_classes:  # TRL joins none
            self.rows.refuse_joined(self.confide_config)
        # default_data_collator stacks rows of one length, and those that confide cuts have their own.
        if (
            facts.is_causal
            and self._pads()
            and parameters.get("data_collator") in (None, default_data_collator)
        ):
            self.data_collator = Padding(self.processing_class)
        self._trained = self.train_dataset
        self._comparison = Comparison(self.rows, parameters.get("train_dataset"), self.confide_config)
        self._take_eval_dataset(parameters.get("eval_dataset"))
        self._job: Job | None = None
        self._loop: Loop | None = None
        self._restored = False  # the model holds the weights of the best checkpoint
        self._losses: list[float] = []

    # what a kind of trainer says of itself --------------------------------------------------------------
    @classmethod
    @abstractmethod
    def _ours(cls) -> type:
        """Return the class of confide's in which overriding the step ends; each kind of trainer defines it."""

    @classmethod
    @abstractmethod
    def _arguments(cls, args: Any) -> Any:
        """Return the arguments, or the default ones; each kind of trainer defines it."""

    def _pads(self) -> bool:
        """Return True if no other collator makes the batches of an evaluation."""
        return True

    def _fields(self) -> dict[str, str]:
        """Return the fields of the rows that a config need not name."""
        if "Classification" in type(_inner(self.model)).__name__:
            return {"label": "labels" if "labels" in self.rows.columns else "label"}
        return self.rows.fields(self.processing_class)

    # what is known before training ----------------------------------------------------------------------
    def _members(self, config: Config) -> int:
        units = registry.mechanism(config.privacy.mechanism).draws == "units"
        if units and self._distinct is None:
            self._distinct = self.rows.distinct(config.data.unit)
        return self._distinct or len(self.rows)

    _distinct: int | None = None  # units that own a row, once they were counted

    def _given(self) -> Given:
        classes = None
        if registry.task_facts(self.confide_config.task).has_classes:
            classes = int(self.model.config.num_labels)
        optimizer = scheduler = None
        steps = self.confide_config.train.steps
        if self._own_optimizer is not None:
            kind, settings = self._own_optimizer
            optimizer = functools.partial(kind, **{"lr": self.args.learning_rate} | settings)
        scheduler = scheduler_of(self.args, steps, always=optimizer is not None)
        return Given(
            self.model,
            self.processing_class,
            self.rows,
            optimizer,
            scheduler,
            self._own_loss,
            TOKENS if self.rows.tokenised else None,
            classes,
        )

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee of the model as it is now; None before the first `train`.

        It counts all planned steps: a callback, or whoever sees a checkpoint, may look and choose when to end.
        """
        if self._loop is None:
            return None
        stated = self._loop.job.guarantee(self._loop.done, self._loop.steps)
        more = [_LOGGED] if self.log_private else []
        more += [_SENT] if senders(self.args, self.callback_handler.callbacks) else []
        more += [_EVALUATED] if self.eval_dataset is not None else []
        if self.rows.tokenised:
            stated = replace(stated, rows_cut=_TOKENISED.format(self.confide_config.data.max_length))
        trust = stated.trust.replace("release/", "the saved model")
        return replace(stated, not_covered=(*stated.not_covered, *more), trust=trust, words=())

    # training ------------------------------------------------------------------------------------------
    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Take confide's steps, with Trainer's callbacks, logs, evaluations and checkpoints around each."""
        if self._loop is not None and self._loop.done and resume_from_checkpoint is None:
            raise InputError(
                f"train: this trainer has taken {self._loop.done} steps already: pass resume_from_checkpoint=True to "
                "go on, or make a new trainer with the model as it was"
            )
        self._refuse_changes()
        refuse_choice(self._shared, self.confide_config, self.args, self.callback_handler.callbacks)
        if self._job is None:
            install_fast_layers(self.model)
            run = TrainerRun(self.confide_config, given=self._given())
        else:
            run = self._job.run  # type: ignore[assignment]
        run.resumes = None if resume_from_checkpoint is None else Path(resume_from_checkpoint)
        with opened(run, Logged(), Ranks(device=self.args.device), self._job) as loop:
            self._job, self._loop, self._restored = loop.job, loop, False
            if loop.repeats:
                logger.warning(
                    f"{run.folder} holds steps of this run. They are taken again from the first one, with the same "
                    "draws and noise: if they have led to a model before, give away only one of the two"
                )
            return self._steps(loop, resume_from_checkpoint, trial, ignore_keys_for_eval)

    def _refuse_changes(self) -> None:
        """Refuse what was changed since the trainer was made, and would not be heeded or would send losses."""
        refuse(self.args, {}, self.model, self.log_private)
        refuse_senders(self.callback_handler.callbacks, self.log_private)
        if self.train_dataset is not self._trained:
            raise InputError(
                "train_dataset: it was replaced after the trainer was made: make a new trainer with it"
            )
        now = config_of(self._privacy, self.args, self.model, self._members, **self._fields())
        if changed := differences(self.confide_config.model_dump(mode="json"), now.model_dump(mode="json")):
            raise InputError(
                f"args: they were changed after the trainer was made ({', '.join(changed)}): make a new trainer"
            )
        if self.eval_dataset is not self._eval_taken:
            self._take_eval_dataset(self.eval_dataset)

    def _take_eval_dataset(self, given: Any) -> None:
        """Compare whose rows the evaluation set holds with whose train, say who is in both, and tokenise it."""
        self._shared = self._comparison.shared(self.eval_dataset, given)
        self.eval_dataset = self._eval_taken = self._each_tokenised(self.eval_dataset)

    def _steps(
        self, loop: Loop, resume: str | None, trial: Any, ignore_keys: list[str] | None
    ) -> TrainOutput:
        args, handler = self.args, self.callback_handler
        logger.warning(
            "args.max_grad_norm is not used: privacy.clip_norm bounds what each "
            f"{loop.job.mechanism.draws.removesuffix('s')} adds"
        )
        if self.log_private:
            logger.warning(
                "training losses are private: no noise covers them. Keep log_history, trainer_state.json, "
                f"*_results.json and {loop.job.run.folder} to yourself; the saved model with its guarantee.json may "
                "be given away"
            )
        each = self._each_epoch(loop)
        self._begin(loop, resume, trial, math.ceil(loop.steps / each))
        first, began = loop.done, time.time()
        total, counted = 0.0, 0
        self.control = handler.on_train_begin(args, self.state, self.control)
        if args.eval_on_start and not loop.done:
            self._evaluate(trial, ignore_keys, skip_scheduler=True)
        in_epoch = False
        while loop.done < loop.steps and not self.control.should_training_stop:
            if not in_epoch:
                self.control, in_epoch = handler.on_epoch_begin(args, self.state, self.control), True
            self.control = handler.on_step_begin(args, self.state, self.control)
            taken = loop.take(self._before_update)
            if isinstance(taken, StopTraining):
                logger.warning(f"ended after step {loop.done} of {loop.steps}: {taken.reason}")
                break
            handler.optimizer = self.optimizer = next(loop.phase_runner.each()).optimizer
            if taken.loss is not None:
                self._losses.append(taken.loss)
                total, counted = total + taken.loss, counted + 1
            self._rate = taken.learning_rate
            self.control = handler.on_optimizer_step(args, self.state, self.control)
            self.state.global_step, self.state.epoch = loop.done, loop.done / each
            self.control = handler.on_step_end(args, self.state, self.control)
            self._log_evaluate_save(trial, ignore_keys, began)
            if loop.done % each == 0:
                self.control, in_epoch = handler.on_epoch_end(args, self.state, self.control), False
                self._log_evaluate_save(trial, ignore_keys, began)
        if in_epoch:
            self.control = handler.on_epoch_end(args, self.state, self.control)
            self._log_evaluate_save(trial, ignore_keys, began)
        taken_now = loop.done - first
        batch = loop.job.setting.parameters.expected_batch
        metrics = speed_metrics("train", began, num_samples=taken_now * batch, num_steps=taken_now)
        average = total / counted if counted and self.log_private else math.nan
        if self.log_private:
            metrics["train_loss"] = average
        self.log(metrics)
        if loop.done:
            recheck_claim(loop.job.setting, loop.steps)
            self._state_guarantee(Path(args.output_dir))
            if loop.metrics is not None and self.guarantee is not None:
                loop.metrics.guarantee(self.guarantee.to_json())
        if args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
            self._restored = True
        self.control = handler.on_train_end(args, self.state, self.control)
        self.is_in_train = False
        return TrainOutput(loop.done, average, metrics)

    def _each_epoch(self, loop: Loop) -> int:
        """Return the steps in which as many members are drawn, on average, as there are.

        Under add-or-remove nobody may know how many there are, but the rate at which they are drawn is public.
        """
        parameters, rate = loop.job.setting.parameters, loop.job.mechanism.sampling_rate
        if rate is not None:
            return bins_of(rate) if loop.job.mechanism.sampling == "bins" else math.ceil(1 / rate - 1e-9)
        members = parameters.units if loop.job.mechanism.draws == "units" else parameters.rows
        return max(1, math.ceil(members / parameters.expected_batch))

    def _begin(self, loop: Loop, resume: str | None, trial: Any, epochs: int) -> None:
        """Set Trainer's state to the beginning, or to that of the checkpoint."""
        self._init_training_state(loop.steps, self._each_epoch(loop), epochs, resume, trial)
        if self.state.global_step != loop.done:
            raise InputError(
                f"{resume}: Trainer's state is that after step {self.state.global_step}, confide's after {loop.done}"
            )
        if resume is not None:
            self._load_rng_state(resume)
        self._losses, self._logged = [], loop.done
        self._initial_num_input_tokens_seen, self._initial_global_step = 0, loop.done
        self._globalstep_last_logged = loop.done
        self.callback_handler.model, self.callback_handler.lr_scheduler = self.model, None
        self.callback_handler.train_dataloader = None

    def _before_update(self, draw: Draw) -> None:
        self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)

    def _log_evaluate_save(self, trial: Any, ignore_keys: list[str] | None, began: float) -> None:
        """Do what the callbacks have asked for, in Trainer's order."""
        if self.control.should_log and self.state.global_step > self._logged:
            logs: dict[str, float] = {}
            if self._losses and self.log_private:  # a step that drew nobody has no loss
                logs["loss"] = sum(self._losses) / len(self._losses)
            logs["learning_rate"] = self._rate
            self._losses, self._logged = [], self.state.global_step
            self.log(logs, began)
        if self.control.should_evaluate:
            metrics = self._evaluate(trial, ignore_keys)
            is_best = self._determine_best_metric(metrics=metrics, trial=trial)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
        if self.control.should_save:
            self._save_checkpoint(self.model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    # evaluation -----------------------------------------------------------------------------------------
    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate the model that would be saved; text is tokenised and cut as training rows are."""
        if eval_dataset is not None:
            self._comparison.shared(eval_dataset, eval_dataset)
        elif self.eval_dataset is not self._eval_taken:
            self._take_eval_dataset(self.eval_dataset)
        with self._as_released():
            found: dict[str, float] = super().evaluate(self._each_tokenised(eval_dataset), *args, **kwargs)
        return found

    def _each_tokenised(self, dataset: Any) -> Any:
        """Tokenise an evaluation set, or each of several by name; None, and the name of one, stay as they are."""
        if dataset is None or isinstance(dataset, str):
            return dataset
        if isinstance(dataset, dict):
            return {name: self._tokenised(each) for name, each in dataset.items()}
        return self._tokenised(dataset)

    def _tokenised(self, dataset: Any) -> Any:
        return tokenised(dataset, self.confide_config, self.processing_class)

    def _as_released(self) -> AbstractContextManager[None]:
        """Give the model the weights that are evaluated and saved: a mean, if the config asks for one."""
        if self._loop is None or self._restored or self._averaging:
            return contextlib.nullcontext()
        return self._averaged(self._loop)

    _averaging = False

    @contextmanager
    def _averaged(self, loop: Loop) -> Iterator[None]:
        self._averaging = True
        try:
            with loop.phase_runner.averaged():
                yield
        finally:
            self._averaging = False

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log figures; without `log_private` none that tells how long steps took, which hangs on what was drawn."""
        if not self.log_private:
            logs = {name: value for name, value in logs.items() if not name.endswith(_TIMES)}
        super().log(logs, *args, **kwargs)

    # saving and resuming --------------------------------------------------------------------------------
    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the model with its guarantee beside it."""
        folder = Path(output_dir if output_dir is not None else self.args.output_dir)
        if self._loop is not None and self._loop.done:
            self._loop.job.check_still()
        with self._as_released():
            super()._save(output_dir, state_dict)
        if self.args.should_save:
            self._state_guarantee(folder)

    def _state_guarantee(self, folder: Path) -> None:
        guarantee = self.guarantee
        if guarantee is None or self._loop is None or not self._loop.done:
            return
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "guarantee.json", json.dumps(guarantee.to_json(), indent=2) + "\n")
        write_text(folder / "guarantee.txt", "\n".join(guarantee.sentences()) + "\n")
        card = f"# A language model fine-tuned with confide\n\n{guarantee.model_card_section()}"
        write_text(folder / "README.md", card)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        state = self._loop.phase_runner.state() if self._loop is not None else None
        if state is not None:
            sound.refuse_diverged(state["weights"])
        super()._save_checkpoint(model, trial)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save confide's state, sealed: weights, optimiser and schedule. A resumed run is then the same to the bit."""
        loop = self._loop
        state = loop.phase_runner.state() if loop is not None else None
        if loop is None or state is None:
            return
        folder = Path(output_dir) / STATE
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier attempt
        Checkpoints(folder).save(loop.done, state, loop.job.seal, loop.job.run.ledger_path)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Leave the model as it is: confide restores it from its own state, once it has seen the base model."""
        folder = Path(resume_from_checkpoint)
        if Checkpoints(folder / STATE).last() is None or not (folder / TRAINER_STATE_NAME).is_file():
            raise InputError(
                f"resume_from_checkpoint: {folder} holds no whole checkpoint of a private trainer (was it saved with "
                "save_only_model, or by another Trainer?)"
            )

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the guarantee as the model card; Trainer's own would tell training losses."""
        self._state_guarantee(Path(self.args.output_dir))

    # what would go past confide -------------------------------------------------------------------------
    def get_train_dataloader(self) -> Any:
        """Refuse: rows are drawn by the mechanism."""
        raise InputError(
            "get_train_dataloader: who takes part in a step is drawn by the mechanism from all rows, so there is no "
            "data loader"
        )

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: every trial would spend privacy that nobody counts."""
        raise InputError(
            "hyperparameter_search: every trial learns from the private rows; `confide tune` runs a sweep and counts it"
        )

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: what it uploads is not only the model."""
        raise InputError(
            "push_to_hub: it uploads all of output_dir, with losses that no noise covers: call save_model(folder) and "
            "upload that folder"
        )


def _widen(model: Any) -> None:
    """Hold what trains in float32, since a step's noise would be rounded away in less.

    transformers loads a model in the precision of its file, which is often bfloat16, and TRL puts the adapter of a
    quantised model into bfloat16. A model of which only a part trains stays as it is, unless that part is an adapter:
    the layers between would meet two precisions, and `ready_model` refuses it.
    """
    every = list(model.parameters())
    coarse = [each for each in every if each.requires_grad and each.dtype in (torch.float16, torch.bfloat16)]
    if not coarse or not (hasattr(model, "peft_config") or all(each.requires_grad for each in every)):
        return
    logger.warning(
        f"model: its weights that train were {str(coarse[0].dtype).removeprefix('torch.')} and are float32 now, which "
        "takes twice the memory; bf16 of TrainingArguments still computes in bf16"
    )
    for each in coarse:
        each.data = each.data.float()


def _inner(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
