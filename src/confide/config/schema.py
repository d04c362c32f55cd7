"""Every key of the config, with its type, bounds, default and meaning.

It knows nothing of files or mechanisms: `confide.config.loading` reads and checks, and mechanisms read the values.
"""

from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field

from confide.config import registry
from confide.config.data_section import Data
from confide.config.fields import MOST_BUFFERS, Count, Positive, Section, Share
from confide.config.model_sections import Adapter, Base
from confide.config.train_section import Train

Selection = Literal["random", "longest", "shortest", "highest-ppl", "lowest-ppl", "random-chunk"]


class Histograms(Section):
    """Shares that are counted in the private text and released with the model."""

    of: list[Literal["conditions", "lengths"]] = Field(
        default_factory=list,
        description="count the shares of `data.conditions` (uls, dp-sgd), or how long documents are (uls), with noise "
        "of their own, and release them with the model; epsilon covers them",
    )
    noise_multiplier: Annotated[Positive, Field(le=10_000)] = Field(
        20.0,
        description="standard deviation of the noise on each count, in units of what one unit may add to all of them "
        "(1 for one histogram, the root of 2 for two)",
    )


class Privacy(Section):
    """The protected unit, the mechanism and its noise."""

    mechanism: str = Field("uls", description="what protects whom")
    epsilon: Positive | None = Field(None, description="the target; or give noise_multiplier")
    delta: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="default: M^-1.1 for M rows in use, at most 1/N for N units"
    )
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None,
        description="standard deviation of the noise on the sum, in units of clip_norm; instead of epsilon",
    )
    clip_norm: Positive = Field(
        1.0, description="bound on the norm of what is clipped together: a row or a unit"
    )
    normalised: bool = Field(
        True,
        description="divide the noised sum by clip_norm, so that the learning rate does not depend on it",
    )
    adjacency: Literal["zero-out", "add-or-remove", "replace-one"] | None = Field(
        None,
        description="what neighbours are; default: zero-out, of selective, redacted, crt and concentration "
        "replace-one; the other two cost more or need literal constants",
    )
    tau: Positive | None = Field(
        None,
        description="concentration: the distance within which most users' mean gradients lie; the noise is in "
        "proportion to it",
    )
    rows_per_unit: Count | Literal["median"] = Field(
        4, description="k of uls and concentration, G of els, group and owners; `median` of the rows per unit"
    )
    selection: Selection | None = Field(
        None,
        description="which rows of a unit; default: random-chunk for uls and concentration on a causal LM, else random",
    )
    resample: bool = Field(
        False, description="els, group: repeat rows of units that have fewer than rows_per_unit"
    )
    sampling: Literal["poisson", "truncated", "bins", "shuffle"] = Field(
        "poisson",
        description="poisson: a coin for each in every step; truncated: the same, but a step of more than `max_batch` "
        "is drawn anew; bins (uls, dp-sgd): each in exactly one step of an epoch, drawn uniformly, and with `bands` or "
        "`buffers` in the same step of every epoch; shuffle: fixed batches as in the papers, and the guarantee is then "
        "an estimate",
    )
    bands: Count = Field(
        1,
        description="uls, dp-sgd: steps over which the noise is correlated (banded matrix factorisation). With "
        "`sampling: bins` it needs less noise than with poisson: at epsilon 8, take as many bands as an epoch has "
        "steps. With poisson a unit can take part in every bands-th step alone. 1: independent noise",
    )
    buffers: int = Field(
        0,
        ge=0,
        le=MOST_BUFFERS,
        description="uls, dp-sgd: in place of `bands`, and with `sampling: bins` alone: noise of a step is taken back "
        "in part by all later steps (buffered linear Toeplitz matrices). It takes the memory of this many copies of "
        "the trainable weights and one more, where bands take one for each. At epsilon 8 take 2 where an epoch has "
        "up to about 20 steps, 3 or 4 where it has more; at smaller epsilon fewer. 0: none",
    )
    scales: dict[str, Positive] = Field(
        default_factory=dict,
        description="factors on the gradients of some tensors before they are clipped, as `{embeddings: 2}`: they "
        "count more in the norm that is clipped, and their learning rate is as many times as high. The noise is then "
        "less beside what they learn, and more beside what others learn. Named as in `train.rate_factors`; the twin "
        "has none. Weight decay grows with the rate",
    )
    common_tokens: Share = Field(
        0.0,
        description="how much less the embeddings of common tokens count. If the model expects a token p times as "
        "often as if all were alike, and p is above 1, its gradient is multiplied by p^-this before it is clipped, and "
        "the token moves by as much less. 0.25 did well with a vocabulary of 8,192; 0: all alike. For models that "
        "write text, whose embeddings train; the twin has none",
    )
    accountant: Literal["blow-up", "kl", "renyi"] = Field(
        "blow-up",
        description="secret: noise from priors and posteriors; kl: as in Ganesh et al. 2025, which is looser; renyi: "
        "the same with Renyi divergences, in between",
    )
    bounding: Literal["greedy", "program"] = Field(
        "greedy",
        description="owners: rows kept until each owner has rows_per_unit, or weighed by a linear program",
    )
    noise: Literal["secure", "fast"] = Field(
        "secure", description="AES-CTR, on a GPU ChaCha20; or Philox, which is no cipher: an estimate"
    )
    histograms: Histograms = Field(
        default_factory=Histograms, description="shares for `confide synthesize`, counted with noise"
    )
    published_key: str | None = Field(
        None, description="derive all randomness from this text: repeatable, and no guarantee to who knows it"
    )


class Detector(Section):
    """The detectors that look for something in the text."""

    level: Literal["low-entity", "high-entity", "low-contextual", "high-contextual"] | None = Field(
        None,
        description="of a spaCy pipeline: persons, organisations, dates, places; all 18 kinds of entities; also "
        "proper nouns, pronouns, subjects, objects; also verbs",
    )
    pipeline: str = Field("en_core_web_sm", description="the spaCy pipeline, by name or folder")
    patterns: list[str] | Literal["all"] | None = Field(
        None,
        description="recognisers of structured data: EMAIL_ADDRESS, CREDIT_CARD, IBAN_CODE ..., or `all`",
    )


class Policy(Detector):
    """The detectors that decide which text is sensitive."""

    words: str | None = Field(
        None, description="file with one word or phrase a line, or a CSV with a column `word`"
    )
    expressions: dict[str, str] = Field(default_factory=dict, description="name: regular expression")
    spans: str | None = Field(
        None,
        description="field that lists the sensitive spans of the text: [start, end], [start, end, kind] or "
        "{start, end, kind}",
    )
    masks: dict[str, str] = Field(
        default_factory=dict,
        description="kind: token, as `PERSON: <NAME>`: stands where nothing else is found, and a causal LM learns it "
        "as any other token; the kinds of these places are then public. Elsewhere stands one mask, which is not learnt",
    )
    recall: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="the share of sensitive text that is found, as you claim it: only 1.0 makes the guarantee a "
        "theorem",
    )


class Repository(Section):
    """Secrets of a source code repository."""

    paths: list[str] = Field(
        default_factory=list, description="globs as in .gitignore: the files that match one are its rows"
    )
    owners: list[str] | Literal["all"] = Field(
        default_factory=list, description="owners in CODEOWNERS: their files"
    )
    authors: list[str] | Literal["all"] = Field(
        default_factory=list, description="mail addresses in git's history: the files they have changed"
    )
    packages: list[str] = Field(default_factory=list, description="Python packages: their modules")
    imports: bool = Field(
        True, description="whoever imports a file of a secret, directly or not, carries it as well"
    )
    root: str | None = Field(None, description="the work tree; default: data.train")

    @property
    def names_secrets(self) -> bool:
        return any((self.paths, self.owners, self.authors, self.packages))


class Program(Section):
    """The linear program that weighs rows."""

    target: Literal["gaussian", "kl", "sqrt-kl"] | None = Field(
        None,
        description="how much of the rows a secret may have, by its prior and posterior; default: gaussian for "
        "accountants blow-up and renyi, sqrt-kl for kl",
    )
    c: Annotated[float, Field(gt=0, le=1)] | Literal["least-noise"] = Field(
        1.0,
        description="the bound on every secret's rows, relative to the one that drops no row; least-noise: the c of "
        "a sweep with the least noise per gradient that keeps enough rows (`keep`)",
    )
    keep: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="c: least-noise: the least share of effective rows, (sum w)^2 / sum w^2"
    )
    solver: Literal["auto", "highs", "pdlp", "greedy"] = Field(
        "auto",
        description="highs for small programs, pdlp for large ones; greedy keeps whole rows as long as there is room, "
        "without a program",
    )


Prior = Annotated[float, Field(gt=0, lt=1)]


class Secrets(Section):
    """The secrets, with their priors and allowed posteriors."""

    words: str | None = Field(
        None, description="file with one word or phrase a line, or a CSV with a column `word`"
    )
    patterns: dict[str, str] = Field(
        default_factory=dict, description="name: regular expression; each distinct match is a secret"
    )
    detector: Detector = Field(
        default_factory=Detector, description="each distinct entity that is found is a secret"
    )
    column: str | list[str] | None = Field(
        None, description="fields that name the secrets of a whole document"
    )
    rows: str | None = Field(
        None, description="file of document numbers, `NUMBER` or `NUMBER,SECRET` a line, counted from 0"
    )
    repository: Repository = Field(
        default_factory=Repository, description="parts of a code base; needs data.format code"
    )
    prior: Prior | list[Prior] | None = Field(
        None,
        description="success of the best blind guess at a secret; a list states several, all enforced",
    )
    posterior: Prior | list[Prior] | None = Field(
        None, description="what the best attack on the model may reach at most, for each prior"
    )
    values: str | None = Field(
        None, description="CSV (id,prior,posterior) for single secrets, or for a class of them"
    )
    recall: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="the share of mentions that is found, as you claim it: only 1.0 makes the guarantee a theorem",
    )
    program: Program = Field(default_factory=Program, description="the linear program that weighs rows")


class Redacted(Section):
    """The steps on redacted rows."""

    mode: Literal["direct", "screened", "light-noise"] = Field(
        "direct",
        description="selective: train on all redacted rows; on a sample that a person has screened (`marks`); or on "
        "all with light noise for what the detector missed (`epsilon`, `missing_rate`)",
    )
    steps: Count = Field(500, description="steps on what is not sensitive, before or between the noised ones")
    batch: Positive | None = Field(
        None, description="expected rows of such a step, at most all there are; default: train.batch"
    )
    learning_rate: Positive | None = Field(None, description="of such a step; default: train.learning_rate")
    marks: str | None = Field(
        None,
        description="the sample that `confide redact --sample` wrote, with what a person marked as missed",
    )
    epsilon: Positive | None = Field(
        None,
        description="light-noise: what these steps may spend of privacy.epsilon, or beside a stated noise",
    )
    missing_rate: tuple[Share, Share] | None = Field(
        None,
        description="light-noise: 95% interval of the share of words that are sensitive and missed, as "
        "`confide redact --marks` estimates it",
        strict=False,
    )
    span_tokens: Count = Field(
        3, description="tokens that a redacted span counts for where rows are cut, so that its text has room"
    )


Factor = Annotated[float, Field(gt=0, le=1)]


class Adaptive(Section):
    """Noise that follows how private the rows look."""

    mode: Literal["private", "nominal"] = Field(
        "private",
        description="private: the factor of each step's noise is released with noise of its own, and a filter keeps "
        "the budget; nominal: the factor of Wu et al. 2022, taken from the drawn rows themselves, and so an estimate",
    )
    probability: Literal["nll", "perplexity"] = Field(
        "nll",
        description="private: how probably a row is private: its mean token loss over the logarithm of the vocabulary, "
        "or its perplexity between the two constants of `between`; cut off at 0 and 1",
    )
    between: tuple[float, float] | None = Field(
        None,
        description="probability: perplexity: [low, high], stated without a look at the data",
        strict=False,
    )
    normalise: Literal["rank", "log-perplexity", "perplexity"] = Field(
        "rank",
        description="nominal: what is stretched from 0 to 1 over the data set",
    )
    floor: Factor = Field(0.5, description="the least factor that a step's noise can have")
    expected: Factor | None = Field(
        None,
        description="private: the factor that a step is planned with: above the floor there is less noise, and the run "
        "may end early; nominal: a factor at which epsilon is told too; default: floor",
    )
    gamma_batch: Positive | None = Field(
        None, description="private: expected rows of the draw that a factor is made from; default: all rows"
    )
    gamma_noise: Positive | None = Field(
        None,
        description="private: standard deviation of the noise on a factor's sum of probabilities; default: 5 times "
        "that of a planned step, in proportion to the sampling probabilities",
    )
    scorer: str | None = Field(
        None,
        description="causal language model that gives the perplexities, a folder or hub name, and has seen no private "
        "row; default: the base model",
    )


class Canaries(Section):
    """The canaries that an audit plants."""

    count: Annotated[int, Field(ge=0)] = Field(
        0,
        description="made-up units planted among the private ones, each by a fair coin, for `confide audit`; they "
        "count as units; 0: none",
    )
    family: Literal["digits", "rare-tokens", "generated"] = Field(
        "digits",
        description="a random number in `template`; random tokens of the vocabulary; text that the base model makes, "
        "spread over its perplexities",
    )
    template: str = Field("My ID is {}", description="digits: the text, with {} where the number stands")
    digits: Annotated[int, Field(ge=1, le=12)] = Field(6, description="digits: how many of them")
    tokens: Annotated[int, Field(ge=2)] = Field(
        24, description="rare-tokens, generated: how many tokens a canary has"
    )
    insertions: Count | Annotated[list[Count], Field(min_length=1)] = Field(
        1,
        description="documents that hold a canary's text, all of its unit; of a list the canaries take turns",
    )
    guesses: Count | None = Field(
        None,
        description="about the coins, in the audit; settled before training; default: a third of the canaries",
    )
    white_box: bool = Field(
        False,
        description="also keep what each step's noised sum tells of each canary, as the guarantee lets everybody see",
    )


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Tracking(Section):
    """Where the course of a run is shown, besides metrics.jsonl and TensorBoard's files in the run folder."""

    to: Annotated[list[Literal["mlflow", "wandb"]], BeforeValidator(_as_list)] = Field(
        default_factory=list,
        description="MLflow, Weights & Biases: `pip install 'confide[mlflow]'`, `'confide[wandb]'`. They are told "
        "settings, learning rates and the guarantee",
    )
    project: str = Field("confide", description="name of the experiment or project")
    offline: bool = Field(
        True,
        description="their files stay in the run folder; false: send them, to MLFLOW_TRACKING_URI or where W&B is "
        "logged in",
    )
    allow_private: bool = Field(
        False,
        description="tell them losses, shares of clipped gradients and times too, which no noise covers",
    )


def _known_task(name: str) -> str:
    if name not in registry.TASKS:
        raise ValueError("no task of the registry")
    return name


class Config(Section):
    """The whole config."""

    model: str = Field(
        "bundled", description="`bundled`, a folder, a hub name, or a config.json to start from scratch"
    )
    tokenizer: str | None = Field(None, description="folder or hub name; default: the model's own")
    special_tokens: list[str] = Field(
        default_factory=list,
        description="added to the vocabulary, with new embeddings: <mask>, or prompts as in `data.speakers`",
    )
    chat_template: str | None = Field(
        None,
        description="of `data.messages`: `chatml`, or a file with a Jinja template; default: the tokenizer's own",
    )
    task: Annotated[str, AfterValidator(_known_task)] = Field("causal-lm", description="what is trained")
    trust_remote_code: bool = Field(False, description="let code from the model's repository run")
    adapter: Adapter = Field(default_factory=Adapter, description="what part of the model is trained")
    base: Base = Field(default_factory=Base, description="how the frozen weights under an adapter are held")
    data: Data = Field(description="where the text comes from")
    privacy: Privacy = Field(default_factory=Privacy, description="what is protected and how")
    secrets: Secrets = Field(
        default_factory=Secrets,
        description="mechanism secret: where secrets are found, and how far each is protected",
    )
    detector: Policy = Field(
        default_factory=Policy,
        description="mechanisms selective, redacted and crt: what in a text is sensitive",
    )
    redacted: Redacted = Field(
        default_factory=Redacted,
        description="mechanisms selective and crt: the steps on what is not sensitive",
    )
    adaptive: Adaptive = Field(
        default_factory=Adaptive,
        description="mechanism adaptive: what each step's noise is multiplied by",
    )
    canaries: Canaries = Field(
        default_factory=Canaries, description="what is planted so that the claim can be attacked"
    )
    train: Train = Field(default_factory=Train, description="the optimisation")
    tracking: Tracking = Field(
        default_factory=Tracking, description="where its course is shown, besides the run folder"
    )
    run: str = Field("runs/run", description="the run folder")

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
