"""TRL's SFTTrainer with confide's private step. It needs the extra `trl`."""

from typing import Any

from confide.integrations.base import PrivateLoop
from confide.integrations.rows import in_pieces
from confide.utils.errors import InputError

try:
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer
except ImportError as error:
    raise InputError("PrivateSFTTrainer needs TRL, an optional extra: pip install 'confide[trl]'") from error


class PrivateSFTTrainer(PrivateLoop, SFTTrainer):  # type: ignore[misc]
    """TRL's `SFTTrainer`, with differential privacy.

        trainer = PrivateSFTTrainer(
            model=model, args=SFTConfig(...), train_dataset=rows, processing_class=tokenizer,
            privacy={"mechanism": "uls", "epsilon": 8, "unit": "author"},
        )

    TRL prepares the rows: it applies the chat template, tokenises, truncates, and says which tokens are predicted
    (`completion_only_loss`, `assistant_only_loss`). confide trains on them. Rows keep their unit. See `PrivateTrainer`
    for the rest.

    Raises:
        InputError: an argument, the data or the model is at fault, or TRL is not installed.

    Formal guarantee: that of `guarantee`; see `PrivateTrainer`.
    """

    @classmethod
    def _ours(cls) -> type:
        return PrivateSFTTrainer

    @classmethod
    def _arguments(cls, args: Any) -> Any:
        if args is None:
            return SFTConfig(output_dir="tmp_trainer")
        if not isinstance(args, SFTConfig):
            raise InputError(f"args: give an SFTConfig, not a {type(args).__name__}")
        return args

    def _pads(self) -> bool:
        return False  # TRL has a collator of its own

    def _tokenised(self, dataset: Any) -> Any:
        # TRL prepares what it evaluates on, and does not know how much the model can read.
        return in_pieces(dataset, self.confide_config)

    def _send_telemetry(self) -> None:
        """Send nothing: TRL would report the kind of model and how the data were loaded."""
