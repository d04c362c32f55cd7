"""Write the model card of a release: what it is, its guarantee, and code that loads it and prints a sentence."""

import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

from confide.config.schema import Config
from confide.config.task_facts import TaskFacts
from confide.data.chat import end_mark
from confide.models.names import BUNDLED
from confide.privacy.guarantee import Guarantee

_CODE = re.compile(r"^```python\n.*?^```\n", re.MULTILINE | re.DOTALL)
_USE = "## Use\n"


@dataclass(frozen=True)
class Use:
    """What the code of a card depends on.

    Attributes:
        base: the base model's name, in public.
        is_path: the base is a folder or an object of those who trained.
        is_random: the base had random weights, which lie nowhere.
        entries: embeddings of an adapted base that got more of them; None if it has its own.
        classes: of a classifier.
        folder: what holds the card.
        held: how the base was held beside the adapter, if not in float32.
        turn_end: what ends the model's turn in a chat, "" if that is not known; None if it was not trained on chats.
    """

    facts: TaskFacts
    base: str
    is_path: bool
    is_adapter: bool
    entries: int | None = None
    classes: int | None = None
    is_random: bool = False
    folder: str = "release"
    held: str = ""
    turn_end: str | None = None

    @property
    def library(self) -> str:
        """What loads the released files."""
        return "peft" if self.is_adapter else "transformers"

    def section(self) -> str:
        """Write how to use the model, as a Markdown section."""
        return f"{_USE}\n{self._before()}```python\n{self.code()}```\n"

    def _before(self) -> str:
        if not self.is_adapter:
            return ""
        return f"It was trained beside a base held in {self.held}.\n\n" * bool(self.held) + self._of_adapter()

    def _of_adapter(self) -> str:
        merge = "`confide export RUN --merge FOLDER` writes a model that needs neither the base nor peft.\n\n"
        if self.base == BUNDLED:
            return (
                "This is an adapter. Its base, `bundled`, lies inside the Python package confide (the folder "
                f"`bundled/base`), which must be installed, or the folder copied. {merge}"
            )
        if self.is_random:
            return (
                f"This is an adapter on random weights, which lie nowhere, so the code below needs what you no longer "
                f"have. {merge}"
            )
        if self.is_path:
            return (
                f"This is an adapter. Its base is the model in the folder `{self.base}` of those who trained it: put "
                f"your path to the same model into the code. {merge}"
            )
        return f"This is an adapter, which loads on its base. {merge}"

    def code(self) -> str:
        """Write code that loads model and tokenizer, and prints a sentence."""
        auto = self.facts.model_class
        lines = [f"from transformers import {auto}, AutoTokenizer", ""]
        here = f"folder = {json.dumps(self.folder)}  # the folder that holds this card, or its name on a hub"
        load = [f"model = {auto}.from_pretrained(folder)"]
        if self.is_adapter:
            bundled = self.base == BUNDLED
            lines = [
                *(["from importlib.resources import files", ""] if bundled else []),
                "from peft import PeftModel",
                *lines,
            ]
            place = 'files("confide") / "bundled" / "base"' if bundled else json.dumps(self.base)
            note = "  # put your path to it here" if self.is_path else ""
            count = "" if self.classes is None else f", num_labels={self.classes}"
            load = [f'base = {auto}.from_pretrained({place}, dtype="float32"{count}){note}']
            if self.entries is not None:
                load.append(f"base.resize_token_embeddings({self.entries}, mean_resizing=False)")
            load.append("model = PeftModel.from_pretrained(base, folder)")
        tokenizer = "tokenizer = AutoTokenizer.from_pretrained(folder)"
        return "\n".join([*lines, here, *load, tokenizer, "", *self._sentence()]) + "\n"

    def _sentence(self) -> list[str]:
        if self.facts.has_classes:
            return [
                'inputs = tokenizer("Dear all, the meeting is at noon.", return_tensors="pt")',
                'print("class", int(model(**inputs).logits.argmax()))',
            ]
        if self.turn_end is not None:
            stop = (
                f", stop_strings=[{json.dumps(self.turn_end)}], tokenizer=tokenizer" if self.turn_end else ""
            )
            return [
                'messages = [{"role": "user", "content": "When is the meeting?"}]',
                "inputs = tokenizer.apply_chat_template(",
                '    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True',
                ")",
                'inputs.pop("token_type_ids", None)',
                f"tokens = model.generate(**inputs, max_new_tokens=30, do_sample=True{stop})",
                'print(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
            ]
        if self.facts.is_causal:
            return [
                'inputs = tokenizer("The meeting is", return_tensors="pt", return_token_type_ids=False)',
                "tokens = model.generate(**inputs, max_new_tokens=30, do_sample=True)",
                "print(tokenizer.decode(tokens[0], skip_special_tokens=True))",
            ]
        return [
            'inputs = tokenizer(f"The meeting is at {tokenizer.mask_token}.", return_tensors="pt")',
            "print(tokenizer.decode(model(**inputs).logits[0].argmax(-1)))",
        ]


def turn_end(config: Config, tokenizer: Any) -> str | None:
    """Return what ends a turn of the chats that a config trains on; see `Use`."""
    return end_mark(tokenizer) if config.data.messages is not None else None


def card(guarantee: Guarantee, use: Use) -> str:
    """Write a model card."""
    return (
        f"{_metadata(guarantee, use)}"
        f"# A language model fine-tuned with confide\n\nBase model: `{use.base}`. Task: {use.facts.name}.\n\n"
        f"{guarantee.model_card_section()}\n{use.section()}"
    )


_NOTIONS = {
    "(epsilon, delta)-DP": ["differential-privacy"],
    "user-level DP": ["differential-privacy", "user-level-differential-privacy"],
    "multi-owner user-level DP": ["differential-privacy", "user-level-differential-privacy"],
    "selective DP": ["selective-differential-privacy"],
    "(p, r)-secret protection": ["secret-protection"],
    "confidentiality": ["confidentially-redacted-training"],
}
_LIBRARY = re.compile(r"\A(---\n(?:.*\n)*?library_name: )\S+\n", re.MULTILINE)


def _metadata(guarantee: Guarantee, use: Use) -> str:
    """Write what a hub reads of a card: library, task, base model and tags, as YAML between two lines of dashes."""
    values: dict[str, Any] = {"library_name": use.library, "pipeline_tag": use.facts.pipeline_tag}
    if not (use.is_path or use.is_random or use.base == BUNDLED):
        values["base_model"] = use.base
    tags = ["confide"]
    if guarantee.notion in _NOTIONS and guarantee.theorem:
        tags += _NOTIONS[guarantee.notion]
    values["tags"] = [*tags, *(["lora"] if use.is_adapter else [])]
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---\n\n"


def with_use(text: str, use: Use) -> str:
    """Return a card, which people may have edited, with the code of another way to use it."""
    text = _LIBRARY.sub(rf"\g<1>{use.library}\n", text)
    start = text.find(f"\n{_USE}") + 1
    found = _CODE.search(text, start) if start else None
    if found is None:
        return f"{text.rstrip()}\n\n{use.section()}"
    return text[:start] + use.section() + text[found.end() :]
