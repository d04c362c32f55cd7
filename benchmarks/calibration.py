"""Time to find the least noise: python benchmarks/calibration.py [--json]"""

import argparse
import json
import time

from confide.privacy.accounting import MixtureOfGaussians, least_noise

DELTA, STEPS = 1e-6, 2000
CASES = {
    "example-level, q = 0.01": MixtureOfGaussians.bernoulli(0.01, STEPS),
    "uls, q = 0.05": MixtureOfGaussians.bernoulli(0.05, STEPS),
    "els, G = 2, p = 0.01": MixtureOfGaussians.binomial(2, 0.01, STEPS),
    "els, G = 16, p = 0.004": MixtureOfGaussians.binomial(16, 0.004, STEPS),
    "els, G = 256, p = 0.001": MixtureOfGaussians.binomial(256, 0.001, STEPS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for name, process in CASES.items():
        for epsilon in (1.0, 8.0):
            began = time.perf_counter()
            noise = least_noise(process, epsilon, DELTA)
            rows.append(
                {"case": name, "epsilon": epsilon, "noise": noise, "seconds": time.perf_counter() - began}
            )
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"delta {DELTA:g}, {STEPS} steps")
    for row in rows:
        print(
            f"{row['case']:<26} epsilon {row['epsilon']:g}  noise {row['noise']:.4f}  {row['seconds']:.2f} s"
        )


if __name__ == "__main__":
    main()
