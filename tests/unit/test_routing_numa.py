"""What NUMA may cost: points of the model, intervals, and what is said when little is known."""

from __future__ import annotations

import pytest

from bridge.api.settings import Numa
from bridge.plan.placement import Placement
from bridge.routing.numa import estimate, factor, slowdown

M, F, B = (0.1, 0.5), (0.25, 0.5), (0.4, 0.7)
NUMA = Numa.model_validate({})


@pytest.mark.parametrize(
    ("domains", "m", "f", "b", "expected"),
    [
        (1, 1.0, 1.0, 0.3, 1.0),  # nothing is remote
        (2, 1.0, 0.5, 0.3, 2.167),
        (2, 0.3, 0.5, 0.6, 1.1),
        (4, 0.3, 0.5, 0.6, 1.15),
        (8, 1.0, 1.0, 0.5, 2.0),  # no more than all accesses
        (2, 0.0, 0.5, 0.3, 1.0),
        (2, 1.0, 0.5, 1.0, 1.0),
    ],
)
def test_points_of_the_model(domains: int, m: float, f: float, b: float, expected: float) -> None:
    assert factor(domains, m, f, b) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("now", "best", "most", "expected"),
    [
        ((1, 1), 1, 2, (1.0, 1.0)),
        ((2, 2), 2, 2, (1.011, 1.375)),
        ((1, 2), 1, 4, (1.0, 1.375)),
        (None, 1, 2, (1.0, 1.375)),  # waits: anything its hosts allow
        (None, 2, 4, (1.011, 1.562)),
        (None, 1, 1, (1.0, 1.0)),  # never broken
        (None, 0, 0, (1.0, 1.375)),  # nobody knows the hosts: perhaps two
    ],
)
def test_intervals(now: tuple[int, int] | None, best: int, most: int, expected: tuple[float, float]) -> None:
    assert slowdown(now, best, M, F, B, most) == pytest.approx(expected, abs=1e-3)
    placed = Placement(True, now is not None, domains_now=now, domains_best=best, domains_most=most)
    assert estimate(placed, NUMA) == slowdown(now, best, M, F, B, most)


def test_an_admin_may_give_single_numbers() -> None:
    given = Numa.model_validate({"memoryBound": 0.3, "remoteShare": 0.5, "remoteBandwidth": 0.6})
    assert estimate(Placement(True, True, domains_now=(2, 2)), given) == pytest.approx((1.1, 1.1))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"memoryBound": 1.5}, "less than or equal to 1"),
        ({"memoryBound": [0.5, 0.1]}, "write the smaller number first"),
        ({"remoteBandwidth": 0}, "greater than or equal to 0.05"),
        ({"hosts": [{"hosts": "n*", "domains": 0}]}, "greater than or equal to 1"),
        ({"hosts": [{"hosts": "n*"}]}, "Field required"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Numa.model_validate(settings)
