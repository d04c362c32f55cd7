"""What counting a sweep costs, beside dp_accounting's Renyi bound: python benchmarks/sweep_cost.py [--json]"""

import argparse
import json

import dp_accounting
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant

from confide.privacy.accounting import MixtureOfGaussians, Repeated, Trials, least_noise

Q, STEPS, DELTA = 0.02, 500, 1e-5
ORDERS = [1 + x / 20 for x in range(1, 400)] + list(range(21, 257))


def renyi(noise: float, trials: Trials) -> float:
    """Epsilon by Papernot and Steinke 2022, as dp_accounting has it."""
    step = dp_accounting.PoissonSampledDpEvent(Q, dp_accounting.GaussianDpEvent(noise))
    run = dp_accounting.SelfComposedDpEvent(step, STEPS)
    accountant = RdpAccountant(ORDERS)
    accountant.compose(RepeatAndSelectDpEvent(run, trials.mean, trials.shape))
    return float(accountant.get_epsilon(DELTA))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    process, rows = MixtureOfGaussians.bernoulli(Q, STEPS), []
    for epsilon in (1.0, 3.0, 8.0):
        noise = least_noise(process, epsilon, DELTA)
        for trials in (Trials(mean, shape) for mean in (8, 16) for shape in (1.0, 0.0)):
            swept = Repeated(process, trials)
            rows.append(
                {
                    "epsilon": epsilon,
                    "trials": trials.describe(),
                    "epsilon_of_sweep": swept.curve(noise).epsilon(DELTA),
                    "epsilon_by_renyi": renyi(noise, trials),
                    "relative_noise": least_noise(swept, epsilon, DELTA) / noise,
                }
            )
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"a unit takes part with probability {Q:g} in each of {STEPS} steps, delta {DELTA:g}")
    for row in rows:
        print(
            f"epsilon {row['epsilon']:g}, {row['trials']:<41} the sweep {row['epsilon_of_sweep']:6.3f}, "
            f"by Renyi {row['epsilon_by_renyi']:6.3f}; the same epsilon takes noise x {row['relative_noise']:.3f}"
        )


if __name__ == "__main__":
    main()
