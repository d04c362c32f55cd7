"""transformers' Trainer with confide's private step."""

from typing import Any

from transformers import TrainingArguments

from confide.integrations.base import PrivateLoop


class PrivateTrainer(PrivateLoop):
    """A `transformers.Trainer` that trains with differential privacy and states what it protects.

        trainer = PrivateTrainer(
            model=model, args=TrainingArguments(...), train_dataset=rows, processing_class=tokenizer,
            privacy={"mechanism": "uls", "epsilon": 8, "unit": "author"},
        )
        trainer.train()
        trainer.save_model()  # with guarantee.json, guarantee.txt and a model card

    It takes what Trainer takes, apart from what a private step cannot honour, which is refused by name. Training rows
    are text (`text`, or the field that `privacy` names), `messages`, or token ids (`input_ids`), and hold their unit.
    `per_device_train_batch_size` is the expected number of users (or rows, for a mechanism that draws rows) of a step.

    Args:
        model: trained as it is, with the adapter that it has; without dropout.
        args: `TrainingArguments`. What they say of steps, batch, rates and the optimiser goes into confide's config.
        privacy: keys of the `privacy` section of a config, with `unit` and other keys of `data`; or a whole config.
        loss: called with model and batch; returns float[B], a loss for each row, of that row alone.
        log_private: whether losses of training rows, which no noise covers, reach `log_history` and the callbacks.
        optimizer_cls_and_kwargs: as Trainer takes them.

    Attributes:
        confide_config: the config of the run. Its `run` folder, by default `{output_dir}.private`, holds the rows, the
            key and the ledger, and nothing of it may be given away.
        guarantee: the guarantee of the model as it is now.

    Raises:
        InputError: an argument, the data or the model is at fault.

    Formal guarantee: that of `guarantee`, which is also written beside every saved model. Callbacks see noised
    gradients and the weights, which is post-processing, and with `log_private` the losses, which is not covered.
    """

    @classmethod
    def _ours(cls) -> type:
        return PrivateTrainer

    @classmethod
    def _arguments(cls, args: Any) -> Any:
        return TrainingArguments(output_dir="tmp_trainer") if args is None else args
