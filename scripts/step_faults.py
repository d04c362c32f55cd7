"""Faults of a step: what it draws, adds up, divides by, records, and goes on from."""

from fault import Fault

STEPS = [
    Fault(
        "2",
        "an empty draw is filled with a row",
        "privacy/sampling.py::Sampling.draw",
        'if self.kind == "truncated" and self.cap is not None and len(drawn) > self.cap:\n'
        '    order = key.stream(phase, "truncate", step).permutation(len(drawn))\n'
        "    drawn = np.sort(drawn[order[: self.cap]])",
        "if len(drawn) == 0:\n"
        "    drawn = np.array([0])\n"
        'if self.kind == "truncated" and self.cap is not None and len(drawn) > self.cap:\n'
        '    order = key.stream(phase, "truncate", step).permutation(len(drawn))\n'
        "    drawn = np.sort(drawn[order[: self.cap]])",
        "tests/privacy/test_sampling.py",
    ),
    Fault(
        "3",
        "a batch holds a row twice",
        "privacy/sampling.py::Sampling._shuffled",
        "np.unique(np.concatenate(parts))",
        "np.concatenate([*parts, parts[0]])",
        "tests/privacy/test_sampling.py",
    ),
    Fault(
        "6",
        "divided by what was drawn",
        "training/step.py::PrivateStep._add_noise",
        "add_noise(self._with_sources(total, step), noise_scale, self.aggregation.scale)",
        "add_noise(self._with_sources(total, step), noise_scale, 1 / max(len(self.sampler.draw(step).rows), 1))",
        "tests/training/test_step.py",
    ),
    Fault(
        "8",
        "every rank processes the whole draw",
        "training/gradient_sum.py::GradientSum._share",
        "deal(draw, self.micro_tokens, self.ranks.size, self.ranks.number, self.task.packs_rows)",
        "deal(draw, self.micro_tokens, 1, 0, self.task.packs_rows)",
        "tests/test_distributed.py -k two_ranks",
    ),
    Fault(
        "8",
        "parts of a split parameter take the same noise",
        "training/step.py::PrivateStep._with_sources",
        "first_index(self.parameters[name])",
        "0",
        "tests/test_distributed.py -k two_ranks",
    ),
    Fault(
        "9",
        "only biases and norms are summed",
        "training/step.py::PrivateStep.__call__",
        "like(vector, self.parameters[name])",
        "like(vector * (vector.dim() < 2), self.parameters[name])",
        "tests/training/test_step.py",
    ),
    Fault(
        "10",
        "the schedule is ignored",
        "training/step.py::PrivateStep._set_rate",
        "self.optimisation.rate(step)",
        "self.optimisation.learning_rate",
        "tests/training/test_step.py",
    ),
    Fault(
        "15",
        "resume starts the sampler anew",
        "runs/loop.py::Loop.__init__",
        "checkpoint.step if checkpoint is not None else 0",
        "0",
        "tests/test_resume.py",
    ),
    Fault(
        "22",
        "a huge unit goes through in one piece",
        "training/packing.py::Lines.is_large",
        "self.tokens > micro_tokens",
        "self.tokens < 0",
        "tests/training/test_packing.py",
    ),
    Fault(
        "22",
        "what was added before memory ran out is added again",
        "training/gradient_sum.py::GradientSum.start_over",
        "self.clipped.forget()",
        "",
        "tests/training/test_memory_fit.py",
    ),
    Fault(
        "29",
        "normalised clipping divides before the noise",
        "training/step.py::PrivateStep._with_sources",
        "(vector, self._source(step, name), first_index(self.parameters[name]))",
        "(vector.div_(self.aggregation.clip_norm or 1), self._source(step, name), first_index(self.parameters[name]))",
        "tests/training/test_step.py",
    ),
    Fault(
        "ledger",
        "the ledger hears after the weights have moved",
        "training/step.py::PrivateStep.__call__",
        "if before_update is not None:\n    before_update(draw)",
        "",
        "tests/training/test_step.py::test_the_ledger_hears_before_the_weights_move",
    ),
    Fault(
        "secret",
        "runs with other priors draw the same noise",
        "runs/job.py::_bound_key",
        "if apart:\n    bound.append(apart)",
        "if False:\n    bound.append(apart)",
        "tests/test_secret_key.py",
    ),
    Fault(
        "selective",
        "the first phase trains on rows that were not redacted",
        "runs/job.py::Job._graph",
        "return self.prepared.public",
        "return self.prepared.train",
        "tests/test_selective_run.py",
    ),
    Fault(
        "selective",
        "runs with other redacted rows draw the same noise",
        "runs/job.py::_bound_key",
        "prepared.trained",
        "(prepared.train,)",
        "tests/test_selective_run.py",
    ),
    Fault(
        "adaptive",
        "a step's noise is not the one that was paid for",
        "training/step.py::PrivateStep._add_noise",
        "self.aggregation.noise_scale * factor",
        "self.aggregation.noise_scale",
        "tests/training/test_step.py",
    ),
    Fault(
        "optimiser",
        "it is told the noise of the sum, and moves weights by the mean",
        "privacy/mechanisms/values.py::Aggregation.noise_std",
        "self.noise_scale * self.scale",
        "self.noise_scale",
        "tests/training/test_step.py",
    ),
    Fault(
        "sweep",
        "every trial leaves a release with the guarantee of the best",
        "runs/loop.py::Loop._finish",
        "if self.job.run.releases:\n    recheck_claim(...)\n    self._release(guarantee)\n"
        "    if self.metrics is not None:\n        self.metrics.guarantee(guarantee.to_json())",
        "if True:\n    self._release(guarantee)",
        "tests/tuning/test_sweep.py",
    ),
    Fault(
        "correlation",
        "units are drawn out of turn",
        "privacy/sampling.py::Sampling.draw",
        "group == step % self.groups",
        "group < self.groups",
        "tests/privacy/test_correlated_noise.py",
    ),
    Fault(
        "correlation",
        "noise with buffers is scaled for a matrix that ends",
        "privacy/correlated_noise.py::Buffered.sensitivity",
        "math.sqrt(math.fsum(1 / (1 - a * b) for a in each for b in each)) / self.buffers",
        "Banded(2 * self.buffers).sensitivity",
        "tests/privacy/test_correlated_noise.py -k buffers",
    ),
    Fault(
        "correlation",
        "a buffer does not forget",
        "privacy/correlated_noise.py::BufferedNoise._keep",
        "before[name].mul_(t).add_(each)",
        "before[name].add_(each)",
        "tests/privacy/test_correlated_noise.py -k inverse",
    ),
    Fault(
        "correlation",
        "a run that goes on forgets the noise before",
        "privacy/correlated_noise.py::CorrelatedNoise.take_back",
        'if step < self._next:\n    raise AssertionError(f"step {step} comes after step {self._next}")',
        "if not self._next:\n"
        "    self._next = step\n"
        "if step < self._next:\n"
        '    raise AssertionError(f"step {step} comes after step {self._next}")',
        "tests/privacy/test_correlated_noise.py",
    ),
]
