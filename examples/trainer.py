"""Fine-tune a causal language model with transformers' Trainer, privately: python examples/trainer.py MODEL TEXT OUT

TEXT is JSONL with a text and its author. The usual script, changed in three places, marked (1) to (3).
"""

import sys

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    TrainingArguments,
)

from confide.integrations import PrivateTrainer  # (1) in place of: from transformers import Trainer


def main(base: str, text: str, out: str, steps: int = 20) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base)

    data = load_dataset("json", data_files=text, split="train")
    data = data.map(lambda row: tokenizer(row["text"], truncation=True, max_length=64), remove_columns="text")
    data = data.train_test_split(test_size=0.1, seed=0)

    args = TrainingArguments(
        output_dir=out,
        max_steps=steps,
        per_device_train_batch_size=16,  # the expected number of authors of a step
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=10,
        save_steps=10,
        report_to="none",
    )
    trainer = PrivateTrainer(  # (2) in place of: Trainer(
        model=model,
        args=args,
        train_dataset=data["train"],
        eval_dataset=data["test"],
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        privacy={"mechanism": "uls", "epsilon": 8, "unit": "author"},  # (3) new
    )
    trainer.train()
    trainer.save_model()
    print(trainer.evaluate()["eval_loss"])
    print("\n".join(trainer.guarantee.short()))


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:5]))
