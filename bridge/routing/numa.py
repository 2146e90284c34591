"""What being spread over several NUMA domains may cost a job: an interval, from three numbers of the settings. Pure.

`1 + m·f·(1/b − 1)`: of the run time the share m waits for memory, of the accesses the share f goes to another domain,
where bandwidth is b times that of the own. A model, not a measurement: some programs run faster on remote memory
(Tang et al., HPCA 2013), and throttling by CPU limits costs more than any of this.
"""

from __future__ import annotations

from bridge.api.settings import Numa
from bridge.plan.placement import Placement

Range = tuple[float, float]


def slowdown(
    domains_now: tuple[int, int] | None, domains_best: int, m: Range, f: Range, b: Range, domains_most: int = 0
) -> tuple[float, float]:
    """Run time as a multiple of that within one domain, at least and at most.

    domains_now: fewest and most domains that the job would be on now. None (it has no room now, or the hosts' domains
    are not known): from the best case to the worst one, `domains_most`, or two domains where that is not known either.
    f is the share over two domains; over d of them accesses that go astray do so (1 − 1/d)/(1 − 1/2) times as often.
    """
    fewest, most = domains_now or (domains_best or 1, domains_most or max(2, domains_best))
    return factor(fewest, m[0], f[0], b[1]), factor(max(fewest, most), m[1], f[1], b[0])


def factor(domains: int, m: float, f: float, b: float) -> float:
    """The model at one point.

    >>> factor(1, 1, 0.5, 0.3), round(factor(2, 0.3, 0.5, 0.6), 2), round(factor(2, 1, 0.5, 0.3), 2)
    (1.0, 1.1, 2.17)
    """
    remote = min(1.0, 2 * f * (1 - 1 / domains))
    return 1 + m * remote * (1 / b - 1)


def estimate(place: Placement, numa: Numa) -> tuple[float, float]:
    """The slowdown of a job placed so, by the settings of its cluster."""
    known = numa.memory_bound, numa.remote_share, numa.remote_bandwidth
    return slowdown(place.domains_now, place.domains_best, *known, place.domains_most)
