"""Kaplan-Meier over weighted samples of which some are censored: the one formula of the wait estimate.

A job that still waits, or was withdrawn, says only that its wait is longer than its age. Leaving such jobs out makes
every estimate too short just when a queue fills; the product-limit estimator (Kaplan and Meier, 1958) counts them among
those at risk up to their age. So one more waiting job, or an older one, never makes a quantile shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: (seconds, START or CENSORED, weight). Sorts starts first at equal times, as the formula asks.
Sample = tuple[float, int, float]
START, CENSORED = 0, 1


def quantiles(samples: Iterable[Sample], probabilities: Sequence[float]) -> list[float]:
    """For each probability (rising) the least number of seconds by which a job has started with it.

    Where the samples do not reach that far, the longest sample: a lower bound. No samples: zeros.

    >>> quantiles([(10, START, 1), (20, START, 1), (30, START, 1), (40, START, 1)], (0.5, 0.9))
    [20, 40]
    >>> quantiles([(10, START, 1), (20, START, 1), (25, CENSORED, 1), (25, CENSORED, 1), (40, START, 1)], (0.5,))
    [40]
    """
    ordered = sorted(samples)
    at_risk = sum(sample[2] for sample in ordered)
    waiting, found, longest = 1.0, 0, 0.0
    answer: list[float] = []
    targets = [1 - probability + 1e-9 for probability in probabilities]
    for seconds, censored, weight in ordered:
        longest = seconds
        if not censored and at_risk > 0:
            waiting *= max(0.0, 1 - weight / at_risk)
            while waiting <= targets[found]:
                answer.append(seconds)
                found += 1
                if found == len(targets):
                    return answer
        at_risk -= weight
    return answer + [longest] * (len(targets) - found)
