"""Give classes and functions of confide the names that the field has for them, in code, docs and lists of faults.

It was run once, on 2026-11-25, and is kept as the record of what was called how before. Python is changed token by
token; in prose a name changes where it stands in backticks.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "studies", "benchmarks", "scripts")

# Names of one meaning: old, new.
EVERYWHERE = {
    "Course": "PhaseRunner",
    "course": "phase_runner",
    "Stage": "Phase",
    "stage": "phase",
    "stages": "phases",
    "Halt": "StopTraining",
    "Step": "PrivateStep",
    "Combine": "Aggregation",
    "combine": "aggregation",
    "Terms": "PrivacyParameters",
    "Curve": "PrivacyProfile",
    "Tuning": "SweepAccounting",
    "Searched": "UncountedSweep",
    "Correlated": "BandedNoise",
    "ConcentrationFilter": "ConcentrationAggregation",
    "told_apart": "key_binding",
    "refuse_company": "check_row_independence",
    "refuse_joint_loss": "check_loss_independence",
    "line_loss": "packed_loss",
    "Quick": "OneDNNLayer",
    "quicken": "use_onednn",
    "fuse": "install_fast_layers",
    "as_written": "original_layers",
    "target_faults": "target_errors",
    "all_faults": "all_validation_errors",
    "canary_faults": "canary_errors",
    "averaging_faults": "averaging_errors",
}

Where = Callable[[str, str, str], bool]  # path, the token before, the token after


def _in(*parts: str) -> Where:
    return lambda path, before, after: any(part in path for part in parts)


def _not_in(*parts: str) -> Where:
    return lambda path, before, after: not any(part in path for part in parts)


def _method(path: str, before: str, after: str) -> bool:
    return before in (".", "def") and after == "("


def _fault_method(path: str, before: str, after: str) -> bool:
    """`faults` of a mechanism's class."""
    places = ("privacy/mechanisms", "config/loading", "every_second", "CONTRIBUTING", "_faults.py")
    return _method(path, before, after) and any(place in path for place in places)


_DRAWS = ("white_box", "privacy/sampling", "mechanisms/rows", "mechanisms/uls", "test_secret_key", "audit_power",
          "test_correlated_noise", "test_canaries")  # fmt: skip
_MEMORY = (
    "memory_fit",
    "runs/job.py",
    "planning/cost.py",
    "test_plan.py",
    "_methods.py",
    "benchmarks/step.py",
)

# Names of several meanings, and where they are meant.
SOMETIMES: dict[str, tuple[str, Where]] = {
    "Setting": ("CalibratedMechanism", _not_in("mean_estimation", "benchmarks/_methods", "benchmarks/correlated",
                                               "benchmarks/_report", "benchmarks/step", "test_benchmarks")),
    "terms": ("parameters", _not_in("clipping/", "benchmarks/cost_model")),
    "settle": ("calibrate", _not_in("clipping/", "auditing/exposure", "auditing/trie", "test_exposure")),
    "Process": ("DominatingPair", _not_in("utils/", "detectors", "multiprocess", "tests/command", "families")),
    "Counted": ("CountedSweep", _not_in("test_benchmarks")),
    "turn": ("phase_of", _method),
    "measure": ("noise_unit", lambda path, before, after: (before == "." and after == "," and "planning/plan" in path)
                or (before == "def" and "mechanisms/base" in path)),
    "faults": ("validation_errors", _fault_method),
    "who": ("unit_ids", lambda path, before, after: (before == "." or after == "="
            or (after == ":" and "privacy/sampling" in path)) and any(p in path for p in _DRAWS)),
    "sharing": ("detect_packing_support", _in("row_isolation", "runs/job.py", "test_line_packing", "test_device")),
    "held": ("optimizer_copies", lambda path, before, after: any(p in path for p in _MEMORY) and after in "(,)\n"),
    "later": ("reserved_bytes", _in("training/memory_fit", "runs/job.py")),
    "Told": ("CanaryScores", _in("auditing/", "tests/auditing")),
    "_learnt": ("_loss_drop", _in("auditing/")),
    "shares": ("packs_rows", lambda path, before, after: (((before in (".", "(") and "task" in path + before)
               or before == ".") and not any(p in path for p in ("preview", "screening", "row_weights", "skewnormal")))
               or ("training/packing" in path and after in (":", ",", ")", "or"))
               or ("tasks/base" in path and after == ":")
               or ("row_isolation" in path and after == "=")),
}  # fmt: skip

MODULES = {
    "src/confide/privacy/accounting/processes.py": "src/confide/privacy/accounting/pairs.py",
    "tests/privacy/accounting/test_processes.py": "tests/privacy/accounting/test_pairs.py",
    "scripts/faults.py": "scripts/mutations.py",
}
PATHS = {
    "accounting.processes": "accounting.pairs",
    "accounting/processes": "accounting/pairs",
    "accounting/test_processes": "accounting/test_pairs",
    "scripts/faults.py": "scripts/mutations.py",
}
_TYPE = (
    ast.Expression,
    ast.Name,
    ast.Attribute,
    ast.Subscript,
    ast.BinOp,
    ast.BitOr,
    ast.Constant,
    ast.Load,
    ast.Tuple,
)


def renamed(name: str, path: str, before: str, after: str) -> str:
    """The new name of a token, or the one that it has."""
    if name in EVERYWHERE:
        return EVERYWHERE[name]
    if name in SOMETIMES and SOMETIMES[name][1](path, before, after):
        return SOMETIMES[name][0]
    return name


def code(text: str, path: str) -> str:
    """Python with its names changed."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    lines = text.splitlines(keepends=True)
    changes = []
    patches = False
    for place, token in enumerate(tokens):
        before = tokens[place - 1].string if place else ""
        after = tokens[place + 1].string if place + 1 < len(tokens) else ""
        if token.type == tokenize.NEWLINE:
            patches = False
        if token.string in ("setattr", "getattr", "hasattr", "object", "patch"):
            patches = True
        new = token.string
        if token.type == tokenize.NAME:
            new = renamed(token.string, path, before, after)
        elif token.type == tokenize.STRING:
            new = _string(token.string, path, patches)
        elif token.type == tokenize.COMMENT:
            new = prose(token.string, path)
        if new != token.string:
            changes.append((token.start, token.end, new))
    for (row, column), (last, end), new in reversed(changes):
        head, tail = lines[row - 1][:column], lines[last - 1][end:]
        lines[row - 1 : last] = [head + new + tail]
    return "".join(lines)


def _string(token: str, path: str, patches: bool) -> str:
    inside = token.strip("rbfu\"'")
    if patches and inside in EVERYWHERE:
        return token.replace(inside, EVERYWHERE[inside])
    if re.match(r"[rR]?[fF]", token):
        return re.sub(r"\{[^{}]+\}", lambda m: _formatted(m[0], path), prose(token, path))
    if "_faults.py" in path and "\n" not in token:
        return _fault(token, inside, path)
    try:
        tree = ast.parse(inside, mode="eval")
        if all(isinstance(node, _TYPE) for node in ast.walk(tree)) and re.search(r"[A-Z]", inside):
            return re.sub(r"\b[A-Z]\w*", lambda m: renamed(m[0], path, "", ""), token)
    except (SyntaxError, ValueError):
        pass
    return prose(token, path)


def _formatted(field: str, path: str) -> str:
    """The expression of a formatted string."""
    return re.sub(
        r"(?<![\"'\w])([A-Za-z_]\w*)(?![\"'\w])",
        lambda m: renamed(m[1], path, field[m.start() - 1], field[m.end()]),
        field,
    )


def _fault(token: str, inside: str, path: str) -> str:
    """A place, or code, of a list of faults."""
    if "::" in inside and " " not in inside:
        head, _, tail = token.partition("::")
        return head + "::" + re.sub(r"\w+", lambda m: renamed(m[0], head + path, ".", "("), tail)
    try:
        ast.parse(inside.replace("...", "_"))
    except (SyntaxError, ValueError):
        return token
    return token if re.fullmatch(r"[\w ]*", inside) else token.replace(inside, code(inside, path))


def prose(text: str, path: str) -> str:
    """Text whose names in backticks are changed."""
    return re.sub(
        r"(?<!`)`([^`\n]+)`(?!`)",
        lambda m: "`" + re.sub(r"[A-Za-z_]\w*", lambda n: _word(n[0], path, m[1]), m[1]) + "`",
        text,
    )


def _word(name: str, path: str, quoted: str) -> str:
    if name.islower() and quoted != name and f".{name}" not in quoted and f"{name}(" not in quoted:
        return name
    return renamed(name, path, ".", "(")


def main() -> None:
    for old, new in MODULES.items():
        subprocess.run(["git", "mv", old, new], cwd=ROOT, check=True)
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file.name in ("names.py", "layout.py"):
                continue
            text = file.read_text("utf-8")
            changed = code(text, str(file.relative_to(ROOT)))
            for old, new in PATHS.items():
                changed = changed.replace(old, new)
            if changed != text:
                file.write_text(changed, "utf-8")
    for file in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*.txt")]:
        text = file.read_text("utf-8")
        changed = prose(text, str(file.relative_to(ROOT)))
        for old, new in PATHS.items():
            changed = changed.replace(old, new)
        if changed != text:
            file.write_text(changed, "utf-8")


if __name__ == "__main__":
    main()
