"""The facts of a task that need no model: how its data, its config and its claim differ from another's."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskFacts:
    """Facts of one task. Code that depends on the task asks for a fact, and never for a name.

    Attributes:
        name: the task's name in the config.
        model_class: the class of `transformers` that loads its models.
        pipeline_tag: what a hub calls the task.
        adapter_type: the member of peft's `TaskType` for a LoRA adapter; None: peft gets no task type.
        cuts_documents: a document is running text and is cut into several rows; else it is one row, truncated.
        is_causal: every token is predicted from those before it. Such a model writes text, needs no mask for the
            padding behind a row, and may take several rows in one line.
        hides_tokens: tokens are hidden behind a mask token: the tokenizer needs one, and each row a random stream.
        has_classes: a document has a class (`data.label`), which is all that its row predicts, and the model gets a
            fresh head for it.
    """

    name: str
    model_class: str
    pipeline_tag: str
    adapter_type: str | None
    cuts_documents: bool = False
    is_causal: bool = False
    hides_tokens: bool = False
    has_classes: bool = False


CAUSAL_LM = TaskFacts(
    name="causal-lm",
    model_class="AutoModelForCausalLM",
    pipeline_tag="text-generation",
    adapter_type="CAUSAL_LM",
    cuts_documents=True,
    is_causal=True,
)
MASKED_LM = TaskFacts(
    name="masked-lm",
    model_class="AutoModelForMaskedLM",
    pipeline_tag="fill-mask",
    adapter_type=None,
    hides_tokens=True,
)
CLASSIFICATION = TaskFacts(
    name="classification",
    model_class="AutoModelForSequenceClassification",
    pipeline_tag="text-classification",
    adapter_type="SEQ_CLS",
    has_classes=True,
)

KNOWN = {each.name: each for each in (CAUSAL_LM, MASKED_LM, CLASSIFICATION)}
"""Facts of confide's own tasks. They stand here so that a config can be read without importing torch."""
