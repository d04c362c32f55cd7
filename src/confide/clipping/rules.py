"""List the layers with rules, and refuse modules that mix rows. To add a rule: write its file, add its line."""

from __future__ import annotations

from importlib import import_module

from torch import nn

from confide.clipping.rule import Layer, Rule, UnsupportedModule, UnsupportedParameter

# The first rule that matches a layer applies.
RULES = {
    "linear": "confide.clipping.kinds.linear:LINEAR",
    "conv1d": "confide.clipping.kinds.linear:CONV1D",
    "embedding": "confide.clipping.kinds.embedding:EMBEDDING",
    "layer norm": "confide.clipping.kinds.norm:LAYER_NORM",
    "norm over rms": "confide.clipping.kinds.norm:OVER_RMS",
    "centred norm": "confide.clipping.kinds.norm:CENTRED",
    "magnitude": "confide.clipping.kinds.magnitude:MAGNITUDE",
    "probed linear": "confide.clipping.kinds.linear:PROBED",
    "look-up": "confide.clipping.kinds.embedding:LOOK_UP",
}


def rules() -> list[Rule]:
    """Return the rules that RULES names, in the same order."""
    places = (place.partition(":") for place in RULES.values())
    return [getattr(import_module(module), name) for module, _, name in places]


# Limits on the tokens that an expert takes, over all rows.
_LIMITED = {"capacity", "expert_capacity", "capacity_factor"}


def refuse_mixing(model: nn.Module) -> None:
    """Refuse modules in which a row's loss depends on the other rows.

    Raises:
        UnsupportedModule: names the first such module.
    """
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or not module.track_running_stats
        ):
            raise UnsupportedModule(
                f"module {name} ({kind}) normalises over the rows of a batch, so that no row has a gradient "
                "of its own: put it in eval mode or use a layer norm instead"
            )
        if limits := _LIMITED & vars(module).keys():
            raise UnsupportedModule(
                f"module {name or '(the model)'} ({kind}) gives an expert only so many tokens ({min(limits)}), so "
                "that one row can take another's place: choose a mixture without that limit, or a dense model"
            )


def _is_compiled(module: nn.Module) -> bool:
    """Return True if the module was compiled by `module.compile()`, or wrapped by `torch.compile(module)`."""
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"


def layers(model: nn.Module) -> list[Layer]:
    """Return the layers to watch, whose rules together cover every trainable parameter.

    Raises:
        UnsupportedParameter: names the first uncovered parameter, and the class of its module.
        UnsupportedModule: a module with trainable parameters is compiled.
    """
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    known = rules()
    found: list[Layer] = []
    owner: dict[str, str] = {}
    for module_name, module in model.named_modules():
        if _is_compiled(module) and any(id(p) in names for p in module.parameters()):
            raise UnsupportedModule(
                f"module {module_name or '(the model)'} is compiled, which hides its layers from the clipping: "
                "give the model as it is"
            )
        own = {n: names[id(p)] for n, p in module._parameters.items() if p is not None and id(p) in names}
        if not own:
            continue
        for name in own.values():
            owner.setdefault(name, type(module).__name__)
        rule = next((rule for rule in known if rule.matches(module)), None)
        covered = {} if rule is None else {n: name for n, name in own.items() if n in rule.parameters}
        if rule is not None and covered:
            found.append(Layer(module_name, module, rule, covered))
    covered_names = {name for layer in found for name in layer.parameters.values()}
    for name in names.values():
        if name not in covered_names:
            raise UnsupportedParameter(
                f"parameter {name} is trainable, but its layer ({owner.get(name, 'unknown')}) is of no kind "
                "whose gradients can be clipped by unit: freeze it, or choose another adapter"
            )
    return found
