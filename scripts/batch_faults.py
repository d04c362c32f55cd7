"""Faults in how a draw is cut into micro-batches and dealt to ranks, and in what follows where memory runs out."""

from fault import Fault

BATCHES = [
    Fault(
        "batches",
        "ranks get equally many units, however many tokens those have",
        "training/packing.py::_dealt",
        "int(tokens[unit])",
        "1",
        "tests/training/test_packing.py",
    ),
    Fault(
        "batches",
        "a draw is cut into full micro-batches, whatever padding they have",
        "training/packing.py::_packed",
        "int(costs.argmin())",
        "0",
        "tests/training/test_packing.py",
    ),
    Fault(
        "batches",
        "each unit has a micro-batch of its own",
        "training/packing.py::_packed",
        "int(costs.argmin())",
        "len(costs) - 1",
        "tests/training/test_packing.py",
    ),
    Fault(
        "batches",
        "held-out rows are not sorted by length",
        "training/evaluation.py::batches",
        'np.argsort(lengths, kind="stable")',
        "np.arange(len(lengths))",
        "tests/training/test_evaluation.py",
    ),
    Fault(
        "batches",
        "memory that runs out in oneDNN's words is taken for a fault of confide",
        "utils/memory.py",
        "(..., 'could not create a primitive', ...)",
        "(..., ...)",
        "tests/training/test_memory_fit.py",
    ),
    Fault(
        "batches",
        "a rank's part of a parameter begins elsewhere where rows do not divide by ranks",
        "distributed/sharding.py::first_index",
        "-(-parameter.shape[0] // parameter.device_mesh.size())",
        "parameter.shape[0] // parameter.device_mesh.size()",
        "tests/test_distributed.py -k begins",
    ),
    Fault(
        "batches",
        "ranks may have micro-batches of different sizes",
        "distributed/ranks.py::Ranks.least",
        "dist.all_reduce(values, op=dist.ReduceOp.MIN)",
        "pass",
        "tests/test_distributed.py -k two_ranks",
    ),
    Fault(
        "25",
        "sums of bf16 products on a GPU are longer than the rounding that norms allow for",
        "clipping/products.py::longest_sum",
        "_HALF_BLOCK_OF_WIDE if width > _WIDE else _HALF_BLOCK",
        "1 << 30",
        "tests/clipping/test_precision.py",
    ),
    Fault(
        "12",
        "biases of bf16 layers are summed in bf16",
        "clipping/rule.py::by_row",
        "values.sum(between, dtype=torch.float32)",
        "values.sum(between).float()",
        "tests/clipping/test_precision.py",
    ),
]
