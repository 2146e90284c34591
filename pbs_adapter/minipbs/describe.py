"""How PBS writes where a job runs and what it uses; pure."""

from __future__ import annotations

from typing import Any

from . import values
from .jobs import Job


def resources_used(job: Job, used: dict[str, int], now: float) -> dict[str, Any]:
    """`used` has cput (seconds), mem and vmem (bytes)."""
    elapsed = now - job.started_at - job.suspended_for - (now - job.suspended_at if job.suspended_at else 0)
    cput = used.get("cput", 0)
    return {
        "cpupercent": int(100 * cput / elapsed) if elapsed >= 1 else 0,
        "cput": values.format_duration(cput),
        "mem": values.format_kb(used.get("mem", 0)),
        "ncpus": int(job.attrs["Resource_List"].get("ncpus", 1)),
        "vmem": values.format_kb(used.get("vmem", 0)),
        "walltime": values.format_duration(elapsed),
    }


def exec_vnode(pieces: list[list[tuple[str, dict[str, int]]]]) -> str:
    """One pair of parentheses for each chunk."""
    return "+".join("(" + "+".join(_piece(name, amounts) for name, amounts in chunk) + ")" for chunk in pieces)


def _piece(name: str, amounts: dict[str, int]) -> str:
    parts = [name]
    for resource in sorted(amounts, key=lambda one: one != "ncpus"):
        amount = amounts[resource]
        parts.append(f"{resource}={values.format_kb(amount) if resource in ('mem', 'vmem') else amount}")
    return ":".join(parts)


def exec_host(job: Job) -> str:
    """host/slot*cpus for each chunk."""
    parts = []
    for (host, slot), chunk in zip(job.slots, job.pieces, strict=True):
        cpus = sum(amounts.get("ncpus", 0) for _, amounts in chunk)
        parts.append(f"{host}/{slot}" + (f"*{cpus}" if cpus != 1 else ""))
    return "+".join(parts)
