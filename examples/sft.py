"""Fine-tune on dialogues with TRL's SFTTrainer and LoRA, privately: python examples/sft.py MODEL DIALOGUES OUT

DIALOGUES is JSONL with `messages` and the customer whose they are. The usual script, changed in three places, marked
(1) to (3). It needs TRL: pip install -c constraints.txt '.[trl]'.
"""

import sys

from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig

from confide.integrations import PrivateSFTTrainer  # (1) in place of: from trl import SFTTrainer

PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def main(base: str, dialogues: str, out: str, steps: int = 20) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = tokenizer.chat_template or PLAIN

    args = SFTConfig(
        output_dir=out,
        max_steps=steps,
        max_length=64,
        per_device_train_batch_size=16,  # the expected number of customers of a step
        learning_rate=2e-3,
        logging_steps=5,
        save_steps=10,
        bf16=False,
        report_to="none",
    )
    trainer = PrivateSFTTrainer(  # (2) in place of: SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(base),
        args=args,
        train_dataset=load_dataset("json", data_files=dialogues, split="train"),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
        privacy={"mechanism": "uls", "epsilon": 8, "unit": "customer"},  # (3) new
    )
    trainer.train()
    trainer.save_model()
    print("\n".join(trainer.guarantee.short()))


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:5]))
