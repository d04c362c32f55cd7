"""Put each known fault into a copy of the sources and see that a test fails: python scripts/faults.py [NUMBER ...]

A check that cannot fail checks nothing. Every row names the pitfall, where the fault goes in, and the tests that must
notice it. Exit code 1 if a fault goes unnoticed, or can no longer be put in.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in `file`; `tests` must then fail."""

    number: str
    what: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = [
    Fault(
        "1",
        "noise for another norm than the clip's",
        "mechanisms/base.py",
        "self.noise_multiplier * self.clip_norm if",
        "self.noise_multiplier * 0.5 * self.clip_norm if",
        "tests/test_training.py tests/mechanisms/test_mechanisms.py::test_clip_and_noise_use_one_norm",
    ),
    Fault(
        "2",
        "an empty draw is filled with a row",
        "sampling.py",
        '        if self.kind == "truncated"',
        '        if len(drawn) == 0:\n            drawn = np.array([0])\n        if self.kind == "truncated"',
        "tests/test_sampling.py",
    ),
    Fault(
        "3",
        "a batch holds a row twice",
        "sampling.py",
        "np.unique(np.concatenate(parts))",
        "np.concatenate([*parts, parts[0]])",
        "tests/test_sampling.py",
    ),
    Fault(
        "4",
        "tied weights: the cross term is lost",
        "clipping/slot.py",
        "squares += 2 * lookups",
        "squares += 0 * lookups",
        "tests/clipping",
    ),
    Fault(
        "5",
        "every parameter clipped to C by itself",
        "clipping/engine.py",
        "self._add_scaled(name, slots.pop(name, None), scale)",
        "self._add_scaled(name, slots[name], self._scale(slots[name].squares().sqrt()))",
        "tests/test_training.py::test_a_step_is_the_formula tests/clipping",
    ),
    Fault(
        "6",
        "divided by what was drawn",
        "training.py",
        "add_noise(vectors, self.combine.noise_scale, self.combine.scale)",
        "add_noise(vectors, self.combine.noise_scale, 1 / max(len(self.sampler.draw(step).rows), 1))",
        "tests/test_training.py",
    ),
    Fault(
        "7",
        "rows clipped one by one where users are claimed",
        "mechanisms/uls.py",
        "return Draw(rows, group, weight.astype(np.float32), labels)",
        "return Draw(rows, np.arange(len(rows)), weight.astype(np.float32), labels)",
        "tests/mechanisms",
    ),
    Fault(
        "8",
        "every rank processes the whole draw",
        "training.py",
        "own = shares[self.ranks.number]",
        "own = share(draw, self.micro_tokens, 1)[0]",
        "tests/test_distributed.py -k two_ranks",
    ),
    Fault(
        "8",
        "the sums of the other ranks are left out",
        "clipping/engine.py",
        "self._ranks.add_up(list(sums.values()))",
        "pass",
        "tests/test_distributed.py -k two_ranks",
    ),
    Fault(
        "8",
        "parts of a split parameter take the same noise",
        "training.py",
        "first_index(self.parameters[name])",
        "0",
        "tests/test_distributed.py -k two_ranks",
    ),
    Fault(
        "9",
        "only biases and norms are summed",
        "training.py",
        "self.parameters[name].grad = like(vector,",
        "self.parameters[name].grad = like(vector * (vector.dim() < 2),",
        "tests/test_training.py",
    ),
    Fault(
        "10",
        "the schedule is ignored",
        "training.py",
        'group["lr"] = rate',
        'group["lr"] = self.optimisation.learning_rate',
        "tests/test_training.py",
    ),
    Fault(
        "11",
        "padding counts in a row's mean",
        "tasks.py",
        "loss.sum(1) / (targets != IGNORE).sum(1).clamp(min=1)",
        "loss.mean(1)",
        "tests/test_tasks.py",
    ),
    Fault(
        "12",
        "norms taken in bf16",
        "clipping/factors.py",
        "    flat = values.reshape(",
        "    values = values.bfloat16()\n    flat = values.reshape(",
        "tests/clipping",
    ),
    Fault(
        "13",
        "a parameter without a rule is left out silently",
        "clipping/rules.py",
        "        if name not in covered_names:",
        "        if False:",
        "tests/clipping/test_clipping_faults.py",
    ),
    Fault(
        "14",
        "shuffled batches claimed as Poisson",
        "mechanisms/statement.py",
        "sampling_used=mechanism.sampling,",
        "sampling_used=mechanism.sampling_assumed,",
        "tests/test_statement.py",
    ),
    Fault(
        "15",
        "resume starts the sampler anew",
        "finetuning.py",
        "self.done = found[0] if found is not None else 0",
        "self.done = 0",
        "tests/test_resume.py",
    ),
    Fault(
        "18",
        "unknown keys are accepted",
        "settings.py",
        'extra="forbid"',
        'extra="ignore"',
        "tests/test_config.py",
    ),
    Fault(
        "22",
        "a huge unit goes through in one piece",
        "packing.py",
        "is_large = (tokens > micro_tokens)",
        "is_large = (tokens < 0)",
        "tests/test_packing.py",
    ),
    Fault(
        "22",
        "what was added before memory ran out is added again",
        "training.py",
        "        self.clipped.forget()\n",
        "",
        "tests/test_physical.py",
    ),
    Fault(
        "22",
        "dense gradients without regard to memory",
        "clipping/slot.py",
        "if needed - replaced > self.left:",
        "if False:",
        "tests/clipping/test_clipped_sum.py",
    ),
    Fault(
        "25",
        "one float32 norm over a long run",
        "clipping/factors.py",
        "        return flat.double().square().sum((1, 2))",
        "        return torch.linalg.vector_norm(flat, dim=(1, 2)).double().square()",
        "tests/clipping/test_precision.py",
    ),
    Fault(
        "26",
        "an empty encoding goes through",
        "models.py",
        "if len(set(probe)) < 2:",
        "if False:",
        "tests/test_bad_input.py tests/test_models.py",
    ),
    Fault(
        "27",
        "a row's loss divided by the tokens of the batch",
        "tasks.py",
        "loss.sum(1) / (targets != IGNORE).sum(1).clamp(min=1)",
        "loss.sum(1) / (targets != IGNORE).sum().clamp(min=1) * len(loss)",
        "tests/test_tasks.py",
    ),
    Fault(
        "28",
        "user sampling on rows with two owners",
        "mechanisms/uls.py",
        "if not shape.single_owner:",
        "if False:",
        "tests/mechanisms",
    ),
    Fault(
        "29",
        "normalised clipping divides before the noise",
        "training.py",
        "            (vector, self._source(step, name),",
        "            (vector.div_(self.combine.clip_norm or 1), self._source(step, name),",
        "tests/test_training.py",
    ),
    Fault(
        "30",
        "draws that do not depend on the key",
        "noise.py",
        "hmac.digest(self._secret, name.encode()",
        'hmac.digest(b"0", name.encode()',
        "tests/test_noise.py tests/test_sampling.py tests/mechanisms",
    ),
    Fault(
        "30",
        "a cipher that turns its words by the wrong number of bits",
        "chacha.py",
        "d = (d << 16) | (d >> 16)",
        "d = (d << 15) | (d >> 17)",
        "tests/test_chacha.py",
    ),
    Fault(
        "30",
        "small tensors of a block share their noise",
        "noise.py",
        "        segment.source._fill(words[place : place + segment.pairs], segment.start - segment.start % 2)",
        "        segments[0].source._fill(words[place : place + segment.pairs], 0)",
        "tests/test_noise.py tests/test_training.py",
    ),
    Fault(
        "31",
        "a plain hash of the data is written",
        "noise.py",
        'hmac.new(self._secret, b"fingerprint\\0" + data, "sha256").hexdigest()',
        "hashlib.sha256(data).hexdigest()",
        "tests/test_noise.py",
    ),
    Fault(
        "32",
        "an add-or-remove claim with derived rates",
        "mechanisms/base.py",
        'if privacy.adjacency == "add-or-remove":',
        "if False:",
        "tests/mechanisms",
    ),
    Fault(
        "ledger",
        "the ledger hears after the weights have moved",
        "training.py",
        "        if before_update is not None:\n            before_update(draw)\n",
        "",
        "tests/test_training.py::test_the_ledger_hears_before_the_weights_move",
    ),
    Fault(
        "secret",
        "rows are drawn at other rates than were accounted for",
        "mechanisms/weighted.py",
        "OwnRates(rates[rows])",
        "OwnRates(np.minimum(1.0, 2 * rates[rows]))",
        "tests/mechanisms/test_secret.py",
    ),
    Fault(
        "secret",
        "a row that only begins or ends with a secret does not list it",
        "rows.py",
        "m.start <= self.end and m.end >= self.start",
        "m.start < self.end and m.end > self.start",
        "tests/test_tagged_rows.py",
    ),
    Fault(
        "secret",
        "two spellings of one secret are two",
        "secrets/finders.py",
        "        text = canonical(text)\n",
        "",
        "tests/secrets/test_finders.py",
    ),
    Fault(
        "secret",
        "runs with other priors draw the same noise",
        "job.py",
        "        if apart:\n",
        "        if False:\n",
        "tests/test_secrecy.py tests/mechanisms/test_secret.py",
    ),
    Fault(
        "secret",
        "an owner above the bound",
        "secrets/program.py",
        "def bound_greedily(offsets: np.ndarray, rows: np.ndarray, n_rows: int, cap: int) -> np.ndarray:",
        "def bound_greedily(offsets: np.ndarray, rows: np.ndarray, n_rows: int, cap: int) -> np.ndarray:\n"
        "    cap += 1",
        "tests/mechanisms/test_owners.py",
    ),
    Fault(
        "selective",
        "the first phase trains on rows that were not redacted",
        "job.py",
        "        return self.prepared.public\n",
        "        return self.prepared.train\n",
        "tests/test_selective_run.py",
    ),
    Fault(
        "selective",
        "a mask is something to predict",
        "tasks.py",
        "nothing = nothing | (ahead == self.mask)",
        "nothing = nothing",
        "tests/test_tasks.py",
    ),
    Fault(
        "selective",
        "replacing a text is accounted as leaving it out",
        "mechanisms/base.py",
        'return replaced(process) if self.adjacency == "replace-one" else process',
        "return process",
        "tests/mechanisms tests/test_statement.py",
    ),
    Fault(
        "selective",
        "the pair for replacement is one clip norm apart",
        "accounting/replacement.py",
        "np.exp(epsilon + log_ndtr((-1 - x) / s))",
        "np.exp(epsilon + log_ndtr(-x / s))",
        "tests/accounting/test_replacement.py",
    ),
    Fault(
        "selective",
        "a row holds characters of the next one",
        "redaction/rows.py",
        "text[origin.of(begin) : origin.of(end)]",
        "text[origin.of(begin) : origin.of(end) + 3]",
        "tests/redaction/test_rows.py tests/test_selective_run.py",
    ),
    Fault(
        "selective",
        "runs with other redacted rows draw the same noise",
        "job.py",
        "            bound.append(_digest(prepared.public))\n",
        "            pass\n",
        "tests/test_selective_run.py",
    ),
    Fault(
        "selective",
        "light noise is accounted for and not added",
        "mechanisms/selective.py",
        "noise = self._light_noise(shape) if self.is_light else 0.0",
        "noise = 0.0",
        "tests/mechanisms/test_selective.py tests/test_selective_run.py",
    ),
    Fault(
        "selective",
        "a detector that may miss something makes a theorem",
        "mechanisms/sensitive.py",
        "if recall == 1.0:",
        "if recall is not None:",
        "tests/mechanisms/test_selective.py",
    ),
    Fault(
        "selective",
        "what is held out is redacted, and a secret is looked for in it",
        "preparation.py",
        'private = [(at, label) for at, side, label in placed if side == "train"]',
        "private = [(at, label) for at, side, label in placed]",
        "tests/redaction/test_documents.py",
    ),
    Fault(
        "32",
        "the privacy probability of a row follows from other rows",
        "mechanisms/adaptive.py",
        "losses / math.log(vocabulary)",
        "losses / losses.max()",
        "tests/mechanisms/test_adaptive.py",
    ),
    Fault(
        "adaptive",
        "a step takes a little more than the budget has",
        "accounting/filter.py",
        "<= self.limit))",
        "<= 1.05 * self.limit))",
        "tests/accounting/test_filter.py",
    ),
    Fault(
        "adaptive",
        "a step's noise is not the one that was paid for",
        "training.py",
        "self.combine.noise_scale * factor",
        "self.combine.noise_scale",
        "tests/test_training.py",
    ),
    Fault(
        "concentration",
        "the threshold is drawn anew in each step",
        "mechanisms/concentration.py",
        'key.stream(phase, "concentration threshold")',
        'key.stream(phase, "concentration threshold", step)',
        "tests/mechanisms/test_concentration.py tests/test_filtered.py",
    ),
    Fault(
        "sweep",
        "a sweep is accounted for as one run",
        "mechanisms/tuned.py",
        "process=Repeated(terms.process, self.trials),",
        "process=terms.process,",
        "tests/mechanisms/test_tuned.py tests/test_tuning.py",
    ),
    Fault(
        "sweep",
        "every trial leaves a release with the guarantee of the best",
        "finetuning.py",
        "if self.job.run.releases:",
        "if True:",
        "tests/test_tuning.py",
    ),
    Fault(
        "audit",
        "one guess at several numbers counts as one at one",
        "audit/game.py",
        "ceiling_p_value(n, 1, ceiling",
        "ceiling_p_value(1, 1, ceiling",
        "tests/audit/test_game.py::test_each_number_that_one_guess_may_hit_counts",
    ),
    Fault(
        "audit",
        "a number that ties with another counts as first",
        "audit/exposure.py",
        "return not bool((found.totals >= floor).any())",
        "return not bool((found.totals > floor + 2 * _slack(model)).any())",
        "tests/audit/test_exposure.py",
    ),
    Fault(
        "audit",
        "two texts are held against the curve of a text and none",
        "audit/game.py",
        "return between(self.curve)",
        "return self.curve",
        "tests/audit/test_secret_game.py",
    ),
    Fault(
        "audit",
        "what noised sums show goes into the guarantee",
        "audit/evidence.py",
        'if game["view"] != "steps"',
        "if True",
        "tests/audit/test_attack.py",
    ),
    Fault(
        "audit",
        "coins need not be those that were sealed before training",
        "audit/attack.py",
        ".encode() not in first",
        ".encode() in b''",
        "tests/audit/test_attack.py",
    ),
]


def noticed(fault: Fault, folder: Path) -> str:
    """What happened: "noticed", "NOT NOTICED", or why the fault could not be put in."""
    sources = folder / "src"
    shutil.copytree(ROOT / "src", sources)
    path = sources / "confide" / fault.file
    text = path.read_text()
    if fault.old not in text:
        return "CANNOT BE PUT IN: the sources have changed"
    path.write_text(text.replace(fault.old, fault.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *fault.tests.split()]
    environment = os.environ | {"PYTHONPATH": str(sources)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return "noticed" if result.returncode == 1 else f"NOT NOTICED (pytest ended with {result.returncode})"


def main() -> int:
    wanted = set(sys.argv[1:])
    unnoticed = 0
    for fault in FAULTS:
        if wanted and fault.number not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcome = noticed(fault, Path(folder))
        unnoticed += outcome != "noticed"
        print(f"{fault.number:>6}  {fault.what}: {outcome}", flush=True)
    return int(unnoticed > 0)


if __name__ == "__main__":
    sys.exit(main())
