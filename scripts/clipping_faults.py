"""Faults of clipped sums: norms, products, layers without a rule."""

from fault import Fault

CLIPPING = [
    Fault(
        "scales",
        "rows of common tokens are multiplied in the sum that is looked up, and not in the outputs' part",
        "clipping/factors.py::Outer.times",
        "Outer(self.left * factor[:, 0].to(self.left.dtype), self.right, self.dtype)",
        "self",
        "tests/clipping/test_scales.py tests/training/test_common_tokens.py",
    ),
    Fault(
        "scales",
        "rows of common tokens are multiplied in the outputs' part alone",
        "clipping/factors.py::Lookup.times",
        "factor = factor[self.index].to(self.grad.dtype)",
        "factor = 1.0",
        "tests/clipping/test_scales.py tests/training/test_common_tokens.py",
    ),
    Fault(
        "scales",
        "rows of common tokens have less gradient and move by whole steps",
        "training/optimisation.py::_slow_down",
        "table.copy_(torch.lerp(before.pop(table).float(), table.float(), share))",
        "before.pop(table)",
        "tests/training/test_common_tokens.py",
    ),
    Fault(
        "scales",
        "a noise that was made for one power serves another",
        "privacy/mechanisms/values.py::Aggregation.binding",
        "float(self.common_tokens).hex()",
        "float(bool(self.common_tokens)).hex()",
        "tests/training/test_common_tokens.py",
    ),
    Fault(
        "4",
        "tied weights: the cross term is lost",
        "clipping/slot.py::Slot._bounded",
        "squares += 2 * cross + of_table",
        "squares += of_table",
        "tests/clipping",
    ),
    Fault(
        "5",
        "every parameter clipped to C by itself",
        "clipping/engine.py::ClippedSum.add",
        "self._sums.add(name, slots.pop(name, None), scale)",
        "self._sums.add(name, slots[name], self._scale(slots[name].norms().double().norm(dim=1)))",
        "tests/training/test_step.py::test_a_step_is_the_formula tests/clipping",
    ),
    Fault(
        "8",
        "the sums of the other ranks are left out",
        "clipping/sums.py::Sums.take",
        "self._ranks.add_up(buffers)",
        "pass",
        "tests/test_distributed.py -k two_ranks",
    ),
    Fault(
        "12",
        "norms taken in bf16",
        "clipping/factors.py::run_norms",
        "flat = values.reshape(values.shape[0], -1, _run(values))",
        "values = values.bfloat16()\nflat = values.reshape(values.shape[0], -1, _run(values))",
        "tests/clipping",
    ),
    Fault(
        "13",
        "a layer that draws lots in training is taken for a linear one",
        "clipping/probes.py::gives",
        "(False, True)",
        "(False,)",
        "tests/clipping/test_layers.py",
    ),
    Fault(
        "13",
        "a parameter without a rule is left out silently",
        "clipping/rules.py::layers",
        "name not in covered_names",
        "False",
        "tests/clipping/test_layers.py",
    ),
    Fault(
        "22",
        "dense gradients without regard to memory",
        "clipping/slot.py::Allowance.covers",
        "needed - replaced > self.left",
        "False",
        "tests/clipping/test_clipped_sum.py",
    ),
    Fault(
        "25",
        "one float32 norm over a long run",
        "clipping/factors.py::run_norms",
        "if flat.shape[-1] > BLOCK:  # a wide vector, such as a bias over the vocabulary\n"
        "    flat = flat.double()\n"
        "norms: Tensor = torch.linalg.vector_norm(flat, dim=-1)",
        "if flat.shape[-1] > BLOCK:  # a wide vector, such as a bias over the vocabulary\n"
        "    flat = flat.flatten(1)\n"
        "norms: Tensor = torch.linalg.vector_norm(flat, dim=-1).view(len(flat), -1)",
        "tests/clipping/test_precision.py",
    ),
    Fault(
        "models",
        "a layer of 8 bits goes back without its scales",
        "models/quantised.py::_Product.backward",
        "_scaled(*ctx.saved_tensors).to(grad.dtype)",
        "ctx.saved_tensors[0].to(grad.dtype)",
        "tests/models/test_bases.py -k 8_bits_goes_back",
    ),
]
