"""Find what cannot go together with `data.condition`."""

from collections.abc import Iterator

from confide.config import registry, yaml_text
from confide.config.schema import Config


def condition_faults(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong)."""
    data = config.data
    fields = [data.condition] if isinstance(data.condition, str) else data.condition or []
    if not fields:
        if data.condition is not None:
            yield "data.condition", "names no field: give one, or null"
        if data.conditions is not None:
            yield "data.conditions", "lists values of the fields in data.condition, which names none"
        return
    if len(set(fields)) < len(fields):
        yield "data.condition", "names a field twice"
    if taken := [name for name in fields if name in RESERVED]:
        yield (
            "data.condition",
            f"{taken[0]} is the name of something else in what is written: rename the field",
        )
    if not data.conditions:
        yield (
            "data.conditions",
            f"say which values of {', '.join(map(yaml_text.name, fields))} there are, as [one, other] or a file: the "
            "list is published with the model, so write down what is known without the private text",
        )
    if not registry.task_facts(config.task).is_causal:
        yield "data.condition", f"is for a model that writes text, and this is {config.task}"
    if data.messages is not None or data.completion is not None:
        worded = "messages" if data.messages is not None else "completion"
        yield (
            "data.condition",
            f"stands in front of data.text, and data.{worded} is another way to make the text: put the value into a "
            "message or the prompt",
        )
    if config.detector.spans is not None:
        yield "data.condition", "moves the text, so detector.spans would count wrong: use another detector"


RESERVED = ("text", "prompt", "ended", "messages", "share")
"""Names that a corpus, or the list of conditions, has for other things."""
