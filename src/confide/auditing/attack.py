"""`confide audit`: all attacks on one run, computed from its own records and its model.

The model is examined twice in the same way, before and after training: the run is not responsible for what the base
model knew. All results are computed from private rows, and no guarantee covers them.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from confide.auditing import exposure, extraction, membership
from confide.auditing.candidates import Candidates
from confide.auditing.game import ALPHA, Claim, Family, play, play_numbers
from confide.auditing.inference import Asked, UserInference, Users, ask, infer
from confide.auditing.membership import Columns
from confide.auditing.numbers import UNSURE, Numbers, guessed_of
from confide.auditing.options import Options
from confide.auditing.rates import ceiling
from confide.auditing.result import Audit, ExposedNumbers, ExtractedText
from confide.auditing.trie import Trie
from confide.config import registry
from confide.data.both_sides import whose_rows
from confide.data.unit_graph import UnitGraph
from confide.privacy import mechanisms
from confide.privacy.ledger import first_entry
from confide.privacy.mechanisms.values import PRESENCE, Game
from confide.privacy.selection import RULES
from confide.runs.canaries import GRAPH, MOST_DIGITS, Manifest, numbers_are_guessed
from confide.runs.generated_canaries import Bucket, buckets
from confide.runs.job import Job
from confide.training import evaluation
from confide.utils.errors import InputError


def audit(job: Job, options: Options | None = None) -> Audit:
    """Attack a trained run. The job must hold the base model before, and holds the trained model afterwards.

    Raises:
        InputError: nothing was trained, or the canaries are not those of the ledger.
    """
    steps, state = job.trained()
    audited = _Audit(job, options or Options(), steps)
    before = audited.look()
    with _released(job, state):
        after = audited.look()
        lead = audited.numbers.lead(job.model) if audited.numbers is not None else None
        exposed = audited.exposed() if "exposure" in audited.attacks else None
    return audited.report(before, after, exposed, lead)


@dataclass(frozen=True)
class CanaryScores:
    """The released model's evidence about the canaries that play the claim's game.

    Attributes:
        claim: the claim that the game tests.
        manifest: all canaries, players or not.
        scores: float64[m], higher where a canary is more likely in, or more likely holds the first of its texts.
        coins: bool[m], whether the canary is in, or holds the first of its texts.
    """

    claim: Claim
    manifest: Manifest
    scores: np.ndarray
    coins: np.ndarray


def told(job: Job) -> CanaryScores:
    """Compute the scores and coins of the claim's game without playing it.

    The job holds the trained model afterwards.

    Raises:
        InputError: nothing was trained, there is no game, or the canaries are not those of the ledger.
    """
    steps, state = job.trained()
    audited = _Audit(job, Options(("claim",)), steps)
    if "claim" in audited.left_out or audited.manifest is None:
        raise InputError(f"{job.run.folder}: {audited.left_out['claim']}")
    before = audited.look()
    with _released(job, state):
        after = audited.look()
    manifest, players = audited.manifest, audited.players
    scores = _loss_drop(before, after)[players]
    return CanaryScores(audited.claim, manifest, scores, manifest.coins[players] == 0)


def _released(job: Job, state: dict[str, Any]) -> AbstractContextManager[None]:
    """Return a context in which the job's model has the weights that were released."""
    phase_runner = job.phase_runner()
    phase_runner.restore(state)
    return phase_runner.averaged()


def sealed(job: Job) -> Manifest:
    """Return the manifest after checking that it is the one that the ledger's first line names.

    Raises:
        InputError: it was changed after the run began, or the run began without one.
    """
    manifest, path = job.manifest(), job.run.ledger_path
    if first_entry(path).get("canaries") != manifest.commitment:
        raise InputError(
            f"{job.run.data}: these canaries are not those that {path} was sealed with before training; "
            "coins that may have been chosen afterwards prove nothing"
        )
    return manifest


def claim_of(job: Job, steps: int, game: Game) -> Claim:
    """Return the claim that the run makes after `steps` steps."""
    guarantee, setting = job.guarantee(steps), job.setting
    curve = zeroed = family = None
    if guarantee.notion != "none":
        parameters, noise = setting.after(job.counted(steps)), setting.noise_multiplier
        curve = zeroed = parameters.process.curve(noise)
        if parameters.zeroed != parameters.process:
            zeroed = parameters.zeroed.curve(noise)
        # some mechanisms claim a budget, which does not fall as the noise grows: these have no family
        if parameters.process.curve(2 * noise).epsilon(guarantee.delta) < guarantee.epsilon:
            family = Family.of(parameters.process, parameters.zeroed, noise)
    return Claim(
        guarantee.unit,
        guarantee.adjacency,
        guarantee.epsilon,
        guarantee.delta,
        curve,
        job.mechanism.unit_is_one_row,
        game,
        zeroed,
        family,
    )


def _in_use(job: Job) -> np.ndarray | None:
    """Return the rows that training could draw: bool[M], or None if it could draw all.

    It is an array only where training draws from a fixed choice of rows.
    """
    found = np.zeros(job.prepared.train.n_rows, dtype=bool)
    for phase in job.phases():
        if not phase.on_public:
            sampler = job.sampler(phase)
            if (possible := sampler.possible_rows()) is None:
                return None
            found[possible] = True
    return found


@dataclass(frozen=True)
class _Side:
    """Users that were all trained on, or all held out, and the rows of theirs that are examined."""

    graph: UnitGraph
    asked: Asked


@dataclass(frozen=True)
class _Looked:
    """The evidence of one model: losses of the canaries' texts, columns of each side's rows, and what it gives back."""

    canaries: list[np.ndarray]
    sides: list[Columns]
    given_back: extraction.Extraction | None


def _loss_drop(before: _Looked, after: _Looked) -> np.ndarray:
    """Compute how much likelier each canary's content became: float64[m].

    In the game of values it is how much more likely the first text became than the other one.
    """
    learnt = [was - now for was, now in zip(before.canaries, after.canaries, strict=True)]
    change: np.ndarray = learnt[0] - learnt[1] if len(learnt) > 1 else learnt[0]
    return change


class _Audit:
    """The attacks that a run allows, and the data that they need."""

    def __init__(self, job: Job, options: Options, steps: int):
        self.job, self.options, self.steps = job, options, steps
        self.left_out: dict[str, str] = {}
        self.manifest = sealed(job) if job.run.config.canaries.count else None
        self.claim = claim_of(job, steps, PRESENCE if self.manifest is None else self.manifest.game)
        self.attacks = [name for name in options.attacks if self._allowed(name)]
        self.players = self._players()
        self.in_use = _in_use(job)
        generator = np.random.default_rng(job.run.key().stream("audit", "sample").uint64(4))
        self.sides = list(self._sides(generator)) if {"membership", "users"} & set(self.attacks) else []
        self._refuse_small_sides()
        self.rows = self._long_rows(generator) if "extraction" in self.attacks else None

    # what there is to attack -----------------------------------------------------------------------
    def _allowed(self, name: str) -> bool:
        reason = self._reason(name)
        if reason is not None:
            self.left_out[name] = reason
        return reason is None

    def _reason(self, name: str) -> str | None:
        """Return the reason why an attack says nothing about this run, or None if it says something."""
        config = self.job.run.config
        if name in ("claim", "exposure") and self.manifest is None:
            return "no canaries were planted: set canaries.count before training"
        if name == "exposure" and config.canaries.family != "digits":
            return f"canaries of family {config.canaries.family} have no candidates to rank them among"
        if name == "exposure" and config.canaries.digits > MOST_DIGITS and self.options.ranks == "exact":
            return (
                f"canaries.digits: ranking among 10^{config.canaries.digits} numbers would take days: ask for "
                "sampled or extrapolated ranks"
            )
        if name == "exposure" and self.manifest is not None and self.manifest.game.has_mask:
            return "training text is redacted around the numbers, and they would be ranked in a text that it never held"
        if name in ("exposure", "extraction") and not registry.task_facts(config.task).is_causal:
            return f"it is about text that a model writes, and this one's task is {config.task}"
        masked = mechanisms.needs_of(config).redaction in ("instead", "apart")
        if name in ("membership", "users", "extraction") and masked:
            return "training rows are redacted and held-out rows are not, which alone would tell them apart"
        rule = config.privacy.selection
        if name in ("membership", "users") and rule in RULES and rule != "random":
            return f"training rows are the {rule} of each unit and held-out rows are any: that alone tells them apart"
        prepared = self.job.prepared
        if name in ("membership", "users") and prepared.held_out is None:
            return "no rows were held out to compare with (data.eval)"
        if name in ("membership", "users") and (
            whose := whose_rows(config.data, prepared.held_out, prepared.trained)
        ):
            return f"held-out rows are {whose}, and not of others alone"
        if name == "users" and config.data.unit is None:
            return "the data name no user (data.unit)"
        return None

    def _players(self) -> np.ndarray:
        """Return the numbers of the canaries that the claim is about: int64. They are fixed before training."""
        if self.manifest is None or "claim" not in self.attacks:
            return np.zeros(0, np.int64)
        missing = self.job.prepared.facts["canaries"].get("missing", [])
        try:
            players = self.claim.players(self.manifest)
            players = players[~np.isin(players, missing)]
            if len(players):
                return players
            reason = (
                "the two numbers of every canary differ in what the claim calls public: they are not found, or are of "
                "different lengths in tokens"
            )
        except InputError as error:
            reason = str(error)
        self.left_out["claim"] = reason
        self.attacks.remove("claim")
        return np.zeros(0, np.int64)

    @cached_property
    def numbers(self) -> Numbers | None:
        """The game of numbers, or None if it could not refute the claim. All inputs of this choice precede training."""
        config = self.job.run.config
        if self.manifest is None or "claim" not in self.attacks or not numbers_are_guessed(config):
            return None
        digits = config.canaries.digits
        every = np.full(len(guessed_of(self.manifest, self.players)), 10**digits)
        if not self._could_refute(every):  # there are no more choices: nobody waits for their tokens
            return None
        found = Numbers.of(self.manifest, self.players, digits, self.job.tokenizer, self._alike)
        return found if self._could_refute(found.choices) else None

    def _could_refute(self, choices: np.ndarray) -> bool:
        """Return True if the game of numbers could refute the claim, or if there is none, so that nothing is saved."""
        if self.claim.curve is None:
            return True
        return play_numbers(self.claim, True, choices, self._share(numbers=True)).needed is not None

    @property
    def _alike(self) -> list[int] | None:
        found: list[int] | None = self.job.prepared.facts["canaries"].get("alike")
        return found

    def _views(self) -> tuple[str, ...]:
        """Return the views that coins are guessed from."""
        reads = self.job.run.config.canaries.white_box and not self.job.run.twin
        return ("release", "steps") if reads else ("release",)

    def _share(self, numbers: bool) -> float:
        """Return each game's share of the probability of a false alarm.

        Args:
            numbers: whether the game of numbers takes a share, too.
        """
        left = ALPHA if self._alike is None else ALPHA - UNSURE
        return left / (len(self._views()) + numbers)

    def _refuse_small_sides(self) -> None:
        """Leave out the attacks that compute rates if a side has fewer than two units."""
        if self.sides and min(len(np.unique(side.asked.units)) for side in self.sides[:2]) < 2:
            for name in {"membership", "users"} & set(self.attacks):
                self.left_out[name] = "takes two units in training and two held out, at least (data.eval)"
                self.attacks.remove(name)
            self.sides = []

    def _sides(self, generator: np.random.Generator) -> Iterator[_Side]:
        """Yield units that were trained on, units that were held out, and other held-out units as RMIA's population."""
        train, held_out, most = self.job.prepared.train, self.job.prepared.held_out, self.options.users
        assert held_out is not None
        real = np.ones(train.n_units, dtype=bool)
        if self.manifest is not None:
            real[self.manifest.units(train)] = False
        apart = generator.permutation(held_out.n_units)
        half = max(1, min(most, held_out.n_units - held_out.n_units // 4))
        for graph, units in (
            (train, generator.permutation(np.flatnonzero(real))[:most]),
            (held_out, apart[:half]),
            (held_out, apart[half : half + most]),
        ):
            among = np.zeros(graph.n_rows, dtype=bool)
            for unit in units.tolist():
                rows = graph.rows_of(unit)
                if graph is train and self.in_use is not None:
                    rows = rows[self.in_use[rows]]
                # chosen as training chooses rows: a user's first rows open a text, which alone would give them away
                among[generator.permutation(rows)[: self.options.rows]] = True
            if among.any():
                yield _Side(graph, ask(graph, self.options.rows, among))

    def _long_rows(self, generator: np.random.Generator) -> np.ndarray | None:
        length = self.options.prefix + self.options.suffix
        try:
            train = self.job.prepared.train
            made_up = self.manifest.units(train) if self.manifest is not None else np.zeros(0, np.int64)
            found = extraction.draw_rows(train, length, self.options.users + len(made_up), generator)
            rows = [graph_rows for unit in made_up.tolist() for graph_rows in train.rows_of(unit).tolist()]
            return found[~np.isin(found, rows)][: self.options.users]
        except InputError as error:
            self.left_out["extraction"] = str(error)
            self.attacks.remove("extraction")
            return None

    # one model -------------------------------------------------------------------------------------
    def look(self) -> _Looked:
        job = self.job
        canaries = []
        if self.manifest is not None and "claim" in self.attacks:
            contents = UnitGraph.open(job.run.data / GRAPH)
            worlds = range(self.manifest.game.contents)
            canaries = [self._losses(contents, self.manifest.rows(contents, world)) for world in worlds]
        sides = [
            membership.columns(job.model, job.task, side.graph, side.asked.among, job.micro_tokens)
            for side in self.sides
        ]
        given_back = None
        if self.rows is not None:
            prefix, suffix = self.options.prefix, self.options.suffix
            given_back = extraction.extract(
                job.model, job.prepared.train, self.rows, prefix, suffix, micro_tokens=job.micro_tokens
            )
        return _Looked(canaries, sides, given_back)

    def _losses(self, graph: UnitGraph, rows: np.ndarray) -> np.ndarray:
        """Compute the sum of each row's token losses: float64[m]."""
        job = self.job
        return evaluation.row_losses(job.model, job.task, graph, job.micro_tokens, among=rows)[0]

    def exposed(self) -> ExposedNumbers:
        """Compute the exposure of canaries' numbers in the current model, by how often they were planted."""
        manifest, config = self.manifest, self.job.run.config.canaries
        assert manifest is not None
        candidates = Candidates.digits(config.template, config.digits)
        by_times: dict[int, list[str]] = {}
        for canary in manifest.canaries:
            times = canary.insertions if canary.is_planted else 0
            by_times.setdefault(times, []).append(canary.secrets[canary.coin if canary.is_planted else 0])
        each = max(1, self.options.secrets // len(by_times))
        kept = {times: secrets[:each] for times, secrets in sorted(by_times.items(), reverse=True)}
        numbers = candidates.numbers([secret for secrets in kept.values() for secret in secrets])
        found = iter(self._exposures(candidates, numbers))
        groups = {times: tuple(next(found) for _ in secrets) for times, secrets in kept.items()}
        return ExposedNumbers(groups, exposure.most(candidates.size))

    def _exposures(self, candidates: Candidates, numbers: np.ndarray) -> tuple[exposure.Exposure, ...]:
        model, tokenizer, draws = self.job.model, self.job.tokenizer, self.options.draws
        if self.options.ranks == "exact":
            return exposure.exact(model, Trie.of(candidates, tokenizer), numbers)
        draws = min(draws, candidates.size - 1)
        estimate = exposure.sampled if self.options.ranks == "sampled" else exposure.extrapolated
        generator = np.random.default_rng(self.job.run.key().stream("audit", "ranks").uint64(4))
        return estimate(model, tokenizer, candidates, numbers, draws, generator)

    # both together ---------------------------------------------------------------------------------
    def report(
        self, before: _Looked, after: _Looked, exposed: ExposedNumbers | None, lead: bool | None
    ) -> Audit:
        curve = self.claim.curve
        result = Audit(
            self.claim,
            self.steps,
            ceiling=ceiling(curve) if curve is not None and self._bounds_membership() else None,
            exposure=exposed,
            membership=self._members(before, after) if "membership" in self.attacks else None,
            users=self._users(before, after) if "users" in self.attacks else None,
            extraction=self._extracted(before, after),
            left_out=self.left_out,
        )
        return self._played(result, before, after, lead) if "claim" in self.attacks else result

    def _users(self, before: _Looked, after: _Looked) -> UserInference:
        pairs = zip(self.sides, after.sides, before.sides, strict=True)
        trained, held_out, *_ = (Users(side.asked, own, base) for side, own, base in pairs)
        return infer(trained, held_out, self.in_use)

    def _extracted(self, before: _Looked, after: _Looked) -> ExtractedText | None:
        if before.given_back is None or after.given_back is None:
            return None
        options = self.options
        samples, probability = options.samples, options.probability
        own, base = (
            each.discoverable(samples, probability) for each in (after.given_back, before.given_back)
        )
        return ExtractedText(
            options.prefix,
            options.suffix,
            samples,
            probability,
            greedy=extraction.compare(after.given_back.greedy, before.given_back.greedy),
            discoverable=extraction.compare(own, base),
        )

    def _bounds_membership(self) -> bool:
        """Tell whether the curve bounds attacks on rows: the split must hold out the claim's unit with all its text."""
        whole = self.job.mechanism.needs.covers_whole_documents
        return whole and isinstance(self.job.run.config.data.eval, float)

    def _played(self, result: Audit, before: _Looked, after: _Looked, lead: bool | None) -> Audit:
        job, manifest = self.job, self.manifest
        assert manifest is not None
        released = _loss_drop(before, after)
        alpha = self._share(numbers=self.numbers is not None)
        players, guesses = self.players, job.run.config.canaries.guesses
        if guesses is not None:
            guesses = min(guesses, len(players))  # some of the canaries that were asked for may be in no game
        coins = manifest.coins[players] == 0
        games = [play(self.claim, "release", released[players], coins, guesses, alpha)]
        if "steps" in self._views():
            scores, seen = job.readings(job.phases()[-1]).told(self.steps)
            games.append(play(self.claim, "steps", scores[players], coins, guesses, alpha, seen))
        if self.numbers is not None and lead is not None:
            games.append(play_numbers(self.claim, lead, self.numbers.choices, alpha))
        perplexity = [canary.perplexity for canary in manifest.canaries]
        by_perplexity: list[Bucket] = []
        if None not in perplexity:
            by_perplexity = buckets(np.array(perplexity)[players], released[players], coins)
        return replace(
            result, game=manifest.game.name, games=tuple(games), by_perplexity=tuple(by_perplexity)
        )

    def _members(self, before: _Looked, after: _Looked) -> membership.Membership:
        """Compare the sides with the base model as the only reference: it has seen none of these rows."""
        sides = [
            membership.Side(
                own,
                (base,),
                membership.compressed_lengths(side.graph, own.rows, self.job.tokenizer),
                membership.unit_of(side.graph, own.rows),
            )
            for side, own, base in zip(self.sides, after.sides, before.sides, strict=True)
        ]
        members, others, *more = sides
        return membership.attack(members, others, more[0] if more else None)
