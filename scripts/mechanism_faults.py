"""Faults of the mechanisms: what a unit may do and what is accounted for."""

from fault import Fault

MECHANISMS = [
    Fault(
        "1",
        "noise for another norm than the clip's",
        "mechanisms/base.py::Combine.noise_scale",
        "self.noise_multiplier",
        "self.noise_multiplier * 0.5",
        "tests/test_training.py tests/mechanisms/test_mechanisms.py::test_clip_and_noise_use_one_norm",
    ),
    Fault(
        "7",
        "rows clipped one by one where users are claimed",
        "mechanisms/uls.py::UnitSampler.draw",
        "Draw(rows, group, weight.astype(np.float32), labels, who=units)",
        "Draw(rows, np.arange(len(rows)), weight.astype(np.float32), labels, who=units)",
        "tests/mechanisms",
    ),
    Fault(
        "14",
        "shuffled batches claimed as Poisson",
        "mechanisms/statement.py::state_guarantee",
        "mechanism.sampling",
        "mechanism.sampling_assumed",
        "tests/test_statement.py",
    ),
    Fault(
        "28",
        "user sampling on rows with two owners",
        "mechanisms/uls.py::UserLevelSampling.terms",
        "not shape.single_owner",
        "False",
        "tests/mechanisms",
    ),
    Fault(
        "32",
        "an add-or-remove claim with derived rates",
        "mechanisms/base.py::Mechanism",
        "@classmethod\n"
        'def faults(cls, config: "Config") -> Iterator[tuple[str, str]]:\n'
        '    """(key, sentence) for each impossible combination of settings."""\n'
        "    privacy, train = config.privacy, config.train\n"
        "    yield from cls.target_faults(config)\n"
        "    if cls.grouped and config.data.unit is None:\n"
        '        yield "data.unit", f"mechanism {cls.name} protects a unit: name the field that holds it"\n'
        '    if privacy.sampling == "truncated" and train.max_batch is None:\n'
        '        yield "train.max_batch", "sampling: truncated needs the most that a step may hold"\n'
        '    if privacy.sampling != "truncated" and train.max_batch is not None:\n'
        '        yield "train.max_batch", f"is an option of sampling: truncated, not of {privacy.sampling}"\n'
        "    if train.max_batch is not None and train.max_batch < train.batch:\n"
        '        yield "train.max_batch", f"{train.max_batch} is below the expected batch {train.batch:g}"\n'
        '    if privacy.adjacency == "add-or-remove":\n'
        "        yield from _literal_faults(config)\n"
        "    if privacy.bands > 1:\n"
        "        yield from cls._correlation_faults(config)\n"
        "\n"
        "@classmethod\n"
        'def _correlation_faults(cls, config: "Config") -> Iterator[tuple[str, str]]:\n'
        "    privacy, bands = config.privacy, config.privacy.bands\n"
        "    if not cls.correlates:\n"
        "        yield (\n"
        '            "privacy.bands",\n'
        '            f"noise is correlated over steps under uls and dp-sgd, not under {cls.name}",\n'
        "        )\n"
        '    if privacy.sampling != "poisson":\n'
        "        yield (\n"
        '            "privacy.sampling",\n'
        '            "noise that is correlated over steps (privacy.bands) needs sampling: poisson",\n'
        "        )\n"
        '    if privacy.adjacency == "add-or-remove":\n'
        '        yield "privacy.bands", "an add-or-remove claim allows no groups, which move when a unit is added"\n'
        "    if bands > config.train.steps:\n"
        "        yield (\n"
        '            "privacy.bands",\n'
        '            f"{bands} are more than the {config.train.steps} steps; take at most as many",\n'
        "        )",
        "@classmethod\n"
        'def faults(cls, config: "Config") -> Iterator[tuple[str, str]]:\n'
        '    """(key, sentence) for each impossible combination of settings."""\n'
        "    privacy, train = config.privacy, config.train\n"
        "    yield from cls.target_faults(config)\n"
        "    if cls.grouped and config.data.unit is None:\n"
        '        yield "data.unit", f"mechanism {cls.name} protects a unit: name the field that holds it"\n'
        '    if privacy.sampling == "truncated" and train.max_batch is None:\n'
        '        yield "train.max_batch", "sampling: truncated needs the most that a step may hold"\n'
        '    if privacy.sampling != "truncated" and train.max_batch is not None:\n'
        '        yield "train.max_batch", f"is an option of sampling: truncated, not of {privacy.sampling}"\n'
        "    if train.max_batch is not None and train.max_batch < train.batch:\n"
        '        yield "train.max_batch", f"{train.max_batch} is below the expected batch {train.batch:g}"\n'
        "    if False:\n"
        "        yield from _literal_faults(config)\n"
        "    if privacy.bands > 1:\n"
        "        yield from cls._correlation_faults(config)\n"
        "\n"
        "@classmethod\n"
        'def _correlation_faults(cls, config: "Config") -> Iterator[tuple[str, str]]:\n'
        "    privacy, bands = config.privacy, config.privacy.bands\n"
        "    if not cls.correlates:\n"
        "        yield (\n"
        '            "privacy.bands",\n'
        '            f"noise is correlated over steps under uls and dp-sgd, not under {cls.name}",\n'
        "        )\n"
        '    if privacy.sampling != "poisson":\n'
        "        yield (\n"
        '            "privacy.sampling",\n'
        '            "noise that is correlated over steps (privacy.bands) needs sampling: poisson",\n'
        "        )\n"
        "    if False:\n"
        '        yield "privacy.bands", "an add-or-remove claim allows no groups, which move when a unit is added"\n'
        "    if bands > config.train.steps:\n"
        "        yield (\n"
        '            "privacy.bands",\n'
        '            f"{bands} are more than the {config.train.steps} steps; take at most as many",\n'
        "        )",
        "tests/mechanisms",
    ),
    Fault(
        "secret",
        "rows are drawn at other rates than were accounted for",
        "mechanisms/weighted.py::WeightedRows.sampler",
        "OwnRates(rates[rows])",
        "OwnRates(np.minimum(1.0, 2 * rates[rows]))",
        "tests/mechanisms/test_secret.py",
    ),
    Fault(
        "selective",
        "replacing a text is accounted as leaving it out",
        "mechanisms/base.py::Mechanism._process",
        'replaced(process) if self.adjacency == "replace-one" else process',
        "process",
        "tests/mechanisms tests/test_statement.py",
    ),
    Fault(
        "selective",
        "light noise is accounted for and not added",
        "mechanisms/selective.py::Selective.stages",
        "self._light_noise(shape) if self.is_light else 0.0",
        "0.0",
        "tests/mechanisms/test_selective.py tests/test_selective_run.py",
    ),
    Fault(
        "selective",
        "a detector that may miss something makes a theorem",
        "mechanisms/sensitive.py::SensitiveText.doubts",
        "recall == 1.0",
        "recall is not None",
        "tests/mechanisms/test_selective.py",
    ),
    Fault(
        "32",
        "the privacy probability of a row follows from other rows",
        "mechanisms/adaptive.py::AdaptiveNoise._probabilities",
        "math.log(vocabulary)",
        "losses.max()",
        "tests/mechanisms/test_adaptive.py",
    ),
    Fault(
        "concentration",
        "the threshold is drawn anew in each step",
        "mechanisms/concentration.py::ConcentrationFilter.passes",
        'key.stream(phase, "concentration threshold")',
        'key.stream(phase, "concentration threshold", step)',
        "tests/mechanisms/test_concentration.py tests/test_filtered.py",
    ),
    Fault(
        "sweep",
        "a sweep is accounted for as one run",
        "mechanisms/tuned.py::Counted.terms",
        "Repeated(terms.process, self.trials)",
        "terms.process",
        "tests/mechanisms/test_tuned.py tests/test_tuning.py",
    ),
    Fault(
        "correlation",
        "correlated noise is not scaled by its matrix's largest column",
        "mechanisms/base.py::Combine.noise_scale",
        "self.noise_multiplier * self.clip_norm * sensitivity(self.bands)",
        "self.noise_multiplier * self.clip_norm",
        "tests/test_correlation.py",
    ),
    Fault(
        "correlation",
        "a group's last turn is not counted",
        "mechanisms/group.py::example_level",
        "math.ceil(steps / sampling.bands)",
        "max(1, steps // sampling.bands)",
        "tests/test_correlation.py",
    ),
    Fault(
        "correlation",
        "units are accounted for as if drawn in every step alike",
        "mechanisms/group.py::example_level",
        "sampling.bands * sampling.rate",
        "sampling.rate",
        "tests/test_correlation.py",
    ),
]
