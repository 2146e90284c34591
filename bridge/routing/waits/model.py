"""The wait model of all clusters: learns from censuses and from the bridge's own pods, answers with quantiles."""

from __future__ import annotations

from collections.abc import Iterable

from bridge.routing.waits.shapes import Shape, Wait
from pbs_adapter.models import Census


class WaitModel:
    """What is known of the waits on every cluster. Times `now`, `submitted`, `started` are the agent's epoch seconds."""

    def learn(self, cluster: str, census: Census, now: float) -> None:
        """Take in a census. One whose `jobs_at` is not newer than the last one's changes nothing about jobs."""

    def observe(
        self,
        cluster: str,
        job_id: str,
        queue: str,
        user: str,
        shape: Shape,
        submitted: float,
        started: float | None,
        now: float,
        *,
        estimated: float | None = None,
    ) -> None:
        """Take in a job of the bridge's own: exact times. Call it when it is submitted, and again when it starts.

        shape.fits_now is as it was at submission. estimated: PBS's `estimated.start_time`, where a site sets it.
        """

    def forget(self, cluster: str, job_id: str, now: float) -> None:
        """The job will not start any more: until now it has waited, and that counts."""

    def waits(
        self,
        shape: Shape,
        cluster: str,
        queue: str | None,
        census: Census,
        now: float,
        quantiles: Iterable[float] = (0.5, 0.9),
    ) -> Wait:
        """How long a job of the census's account would wait, submitted now. None: the server's default queue.

        `queue` is an execution queue: a routing queue has no history of its own, the coarser groups then answer.
        """
        table = {True: 1.0, False: 3600.0, None: 60.0}
        return Wait({q: table[shape.fits_now] for q in sorted(quantiles)}, 0, "prior", 0.0)

    def dump(self) -> bytes:
        """All that has been learnt from ended waits, at most 512 KiB, for a ConfigMap (binaryData)."""
        return b""

    def load(self, content: bytes) -> bool:
        """Add what `dump` gave; False, and nothing changes, when it cannot be read."""
        return False
