"""Faults that `verify` must see, each put in with monkeypatch."""

from dataclasses import replace

import torch
from torch.nn import functional
from transformers.activations import ACT2CLS

from confide import clipping
from confide.clipping import engine
from confide.privacy.mechanisms.values import Aggregation
from confide.training import gradient_sum
from confide.training import step as training
from confide.training.tasks import Task, base
from confide.training.tasks.causal_lm import CausalLM
from tests import small


def skip_a_parameter(patch):
    take = clipping.ClippedSum.take

    def forgetful(self):
        sums = take(self)
        sums.pop("transformer.h.1.mlp.c_fc.weight")
        return sums

    patch.setattr(clipping.ClippedSum, "take", forgetful)


def leave_a_parameter_out_of_the_norm(patch):
    """Pitfall 13."""
    norms = engine.Slot.norms

    def partial(self):
        return None if self._shape == (small.TOKENS, 16) else norms(self)

    patch.setattr(engine.Slot, "norms", partial)


def halve_the_norm(patch):
    scale = clipping.ClippedSum._scale
    patch.setattr(clipping.ClippedSum, "_scale", lambda self, norms: scale(self, norms / 2))


def always_normalise(patch):
    def scale(self, norms):
        return (self._clip_norm / norms).float() if self._clip_norm else torch.ones_like(norms).float()

    patch.setattr(clipping.ClippedSum, "_scale", scale)


def clip_rows_instead_of_units(patch):
    """Pitfall 7."""
    add = clipping.ClippedSum.add

    def by_row(self, batch, unit, weight):
        return add(self, batch, torch.arange(len(unit)), weight)

    patch.setattr(clipping.ClippedSum, "add", by_row)


def clip_at_another_norm_than_the_noise(patch):
    """Pitfall 1."""
    honest = clipping.ClippedSum
    patch.setattr(
        gradient_sum,
        "ClippedSum",
        lambda model, loss, clip, *more: honest(model, loss, clip and 2 * clip, *more),
    )


def half_the_noise(patch):
    add = training.add_noise
    patch.setattr(
        training, "add_noise", lambda vectors, scale, *more, **named: add(vectors, scale / 2, *more, **named)
    )


def half_the_noise_by_the_value_that_says_how_much(patch):
    patch.setattr(
        Aggregation, "noise_scale", property(lambda self: self.noise_multiplier * (self.clip_norm or 0) / 2)
    )


def slightly_less_noise(patch):
    add = training.add_noise
    less = 0.98
    patch.setattr(
        training,
        "add_noise",
        lambda vectors, scale, *more, **named: add(vectors, less * scale, *more, **named),
    )


def no_noise(patch):
    add = training.add_noise
    patch.setattr(
        training, "add_noise", lambda vectors, scale, *more, **named: add(vectors, 0.0, *more, **named)
    )


def no_noise_on_one_parameter(patch):
    add = training.add_noise

    def choosy(vectors, scale, times, units=None):
        for vector in vectors:
            add([vector], 0.0 if vector[0].shape == (16, 64) else scale, times)

    patch.setattr(training, "add_noise", choosy)


def the_same_noise_in_every_step(patch):
    source = training.PrivateStep._source
    patch.setattr(training.PrivateStep, "_source", lambda self, step, name: source(self, 0, name))


def noise_in_empty_steps_alone(patch):
    call = training.PrivateStep.__call__

    def sly(self, step, before_update=None):
        kept = self.aggregation
        if self.sampler.draw(step).groups:
            self.aggregation = replace(kept, noise_multiplier=0.0)
        try:
            return call(self, step, before_update)
        finally:
            self.aggregation = kept

    patch.setattr(training.PrivateStep, "__call__", sly)


def divide_by_what_was_drawn(patch):
    """Pitfall 6."""
    call = training.PrivateStep.__call__

    def sly(self, step, before_update=None):
        kept, drawn = self.aggregation, self.sampler.draw(step).groups
        self.aggregation = replace(kept, scale=kept.scale * 7 / max(drawn, 1))
        try:
            return call(self, step, before_update)
        finally:
            self.aggregation = kept

    patch.setattr(training.PrivateStep, "__call__", sly)


def divide_a_loss_by_the_tokens_of_the_batch(patch):
    """Pitfall 27: num_items_in_batch."""
    honest = Task.row_loss

    def row_loss(self, model, batch):
        return honest(self, model, batch) * len(batch["real"]) / batch["real"].sum()

    patch.setattr(Task, "row_loss", row_loss)


def count_padding(patch):
    """Pitfall 11."""
    honest = Task.row_loss

    def row_loss(self, model, batch):
        losses = honest(self, model, batch)
        share = batch["real"].float().mean(1)
        return losses * (share if losses.dim() == 1 else share[:, None])

    patch.setattr(Task, "row_loss", row_loss)


def let_rows_of_a_line_attend_to_each_other(patch):
    honest = Task.collate_lines

    def collate_lines(self, lines, weights):
        batch = honest(self, lines, weights)
        position = torch.arange(batch["row"].shape[1]).expand(batch["row"].shape)
        return batch | {"position_ids": position}

    patch.setattr(Task, "collate_lines", collate_lines)


def predict_the_next_row_of_a_line(patch):
    honest = CausalLM.targets

    def targets(self, batch):
        return honest(self, {name: values for name, values in batch.items() if name != "row"})

    patch.setattr(CausalLM, "targets", targets)


def forget_the_weights_of_a_line(patch):
    patch.setattr(base, "each_line", lambda losses, batch: losses if losses.dim() == 1 else losses.sum(1))


def skip_an_empty_draw(patch):
    """Pitfall 2."""
    call = training.PrivateStep.__call__

    def skipping(self, step, before_update=None):
        return call(self, step, before_update) if self.sampler.draw(step).groups else None

    patch.setattr(training.PrivateStep, "__call__", skipping)


def leave_a_parameter_to_the_optimiser_alone(patch):
    """Pitfall 9: a weight that trains on paper."""
    build = training.Optimisation.build
    patch.setattr(
        training.Optimisation,
        "build",
        lambda self, parameters, *more: build(self, dict(list(parameters.items())[:-1]), *more),
    )


def another_function_for_an_activation(patch):
    patch.setattr(ACT2CLS["gelu_pytorch_tanh"], "forward", lambda self, given: functional.silu(given))


FAULTS = [  # what is broken, the checks that must see it
    (skip_a_parameter, {"clipping", "coverage", "step"}),
    (leave_a_parameter_out_of_the_norm, {"clipping", "step"}),
    (halve_the_norm, {"clipping"}),
    (always_normalise, {"clipping"}),
    (clip_rows_instead_of_units, {"clipping"}),
    (clip_at_another_norm_than_the_noise, {"step"}),
    (half_the_noise, {"noise"}),
    (half_the_noise_by_the_value_that_says_how_much, {"noise"}),
    (slightly_less_noise, {"noise"}),
    (no_noise, {"noise", "empty"}),
    (no_noise_on_one_parameter, {"noise", "empty"}),
    (the_same_noise_in_every_step, {"noise"}),
    (noise_in_empty_steps_alone, {"noise"}),
    (divide_by_what_was_drawn, {"step", "noise"}),
    (divide_a_loss_by_the_tokens_of_the_batch, {"alone"}),
    (count_padding, {"alone"}),
    (let_rows_of_a_line_attend_to_each_other, {"alone", "clipping"}),
    (predict_the_next_row_of_a_line, {"alone", "clipping"}),
    (forget_the_weights_of_a_line, {"clipping"}),
    (skip_an_empty_draw, {"empty"}),
    (leave_a_parameter_to_the_optimiser_alone, {"coverage"}),
    (another_function_for_an_activation, {"clipping", "step"}),
]
