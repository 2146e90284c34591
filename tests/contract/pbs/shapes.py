"""What two answers of PBS have in common when host, user, ids and times differ: structure, types, stable values."""

from __future__ import annotations

import json
import re
from typing import Any

STABLE = frozenset(
    {
        "Job_Name", "job_state", "queue", "Checkpoint", "Hold_Types", "Join_Path", "Keep_Files", "Mail_Points",
        "Priority", "Rerunable", "Resource_List", "Remove_Files", "substate", "umask", "run_count",
        "Stageout_status", "Exit_status", "Submit_arguments", "executable", "argument_list", "array", "array_index",
        "array_state_count", "array_indices_submitted", "array_indices_remaining", "Account_Name", "project",
    }
)  # fmt: skip
"""Attributes of a job whose values, not only their types, must agree."""
SHORT = frozenset({"stdin", "exe"})
"""Jobs that end about when the MoM first reports; only then do they have a session_id."""
DATE = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d at \d\d:\d\d")
SERVER_VALUES = frozenset(
    {
        "server_state", "scheduling", "state_count", "default_queue", "query_other_jobs", "resources_default",
        "default_chunk", "scheduler_iteration", "resources_assigned", "flatuid", "max_array_size",
        "job_history_enable",
    }
)  # fmt: skip


def loads(text: str) -> Any:
    """JSON with duplicate keys refused. What only the released version writes (`.5`, `+5`, `5.`, inf) becomes "RAW"."""
    text = re.sub(r'(":)\s*([-+]?(?:inf|nan|\.\d+|\d+\.|\+\d+|1e999))(?=[,\n])', r'\1"RAW"', text)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in items}) != len(items):
            raise ValueError("duplicate keys")
        return dict(items)

    return json.loads(text, object_pairs_hook=pairs)


def kind(value: Any) -> Any:
    """A value's type; of an object its keys in order with their types, of a list the type of its items."""
    if isinstance(value, dict):
        return {key: kind(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [kind(value[0])] if value else []
    return type(value).__name__


def job_shape(job: dict[str, Any]) -> dict[str, Any]:
    """One job: keys in order, types, and the values that do not depend on where and when it ran."""
    shape: dict[str, Any] = {}
    if job["Job_Name"] in SHORT:
        job = {key: value for key, value in job.items() if key != "session_id"}
    for key, value in job.items():
        if key == "comment":
            shape[key] = re.sub(r"A: \d+|\[\d\]", "n", DATE.sub("DATE", plain(value)))
        elif key in ("exec_vnode", "exec_host", "depend", "Job_Owner", "server", "array_id"):
            shape[key] = re.sub(r"\d+", "n", plain(value))
        elif key == "Submit_arguments":
            shape[key] = re.sub(r"\d+(\[\])?\.\S+|-a \d+", "n", value)
        elif key == "Resource_List" and job["Job_Name"] == "wall":
            shape[key] = {**value, "walltime": value["walltime"][:5]}  # the session changes its seconds
        elif key in STABLE:
            shape[key] = value
        elif key == "Variable_List":
            shape[key] = {name: kind(inner) for name, inner in sorted(value.items()) if name != "TRAILING"}
        else:
            shape[key] = kind(value)
    shape["order of keys"] = list(job)
    return shape


def plain(text: str) -> str:
    """Hosts and users renamed: each side has its own."""
    text = re.sub(r"\bby \w+@[\w.-]+", "by USER@HOST", text)
    text = re.sub(r"\w+@", "USER@", text) if "USER@" not in text else text
    return re.sub(r"\bpbs-[abx]\b|\bHOST\b", "HOST", text)


def jobs_by_name(document: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Shapes by job name and number among those of the same name, in the order given."""
    shapes: dict[tuple[str, int], dict[str, Any]] = {}
    for job in document.get("Jobs", {}).values():
        if job["job_state"] == "E":
            continue  # a moment that one recording happened to catch; test_jobs.py compares it
        name = str(job["Job_Name"])
        number = sum(1 for other, _ in shapes if other == name)
        shapes[name, number] = job_shape(job)
    return shapes


def node_shape(node: dict[str, Any]) -> dict[str, Any]:
    """A vnode; `last_used_time` is there once the vnode has been used, which a recording's past decides."""
    shape = {key: kind(value) for key, value in node.items() if key != "last_used_time"}
    shape["state"] = node["state"]
    shape["jobs"] = len(node.get("jobs", []))
    shape["assigned"] = node["resources_assigned"]
    shape["available"] = {key: node["resources_available"].get(key) for key in ("arch", "mem", "ncpus")}
    return shape


def of_any_site(document: dict[str, Any]) -> dict[str, Any]:
    """A document less what the history and set-up of a site decide, for comparing two real ones."""
    for section in ("nodes", "Queue", "Server"):
        for attributes in document.get(section, {}).values():
            for key in ("pcpus", "acl_roots"):
                attributes.pop(key, None)
            if attributes.get("resources_assigned", {}).get("ncpus") == 0:
                del attributes["resources_assigned"]  # zero once there have been jobs, absent before
    return document


def document_shape(document: dict[str, Any]) -> dict[str, Any]:
    """Any of the JSON documents."""
    head = {key: kind(value) for key, value in document.items() if key not in ("Jobs", "nodes", "Server", "Queue")}
    shape: dict[str, Any] = {"head": head, "sections": list(document)}
    if "Jobs" in document:
        shape["jobs"] = jobs_by_name(document)
    for name, node in document.get("nodes", {}).items():
        shape[plain(name)] = node_shape(node)
    for name, queue in document.get("Queue", {}).items():
        shape[f"queue {name}"] = queue
        shape[f"order {name}"] = list(queue)
    for server in document.get("Server", {}).values():
        shape["server"] = {key: kind(value) for key, value in server.items()}
        shape["order"] = list(server)
        shape["values"] = {key: server.get(key) for key in SERVER_VALUES}
    return shape


def table_shape(text: str) -> list[Any]:
    """A table as its head and, for each line, the cells below the dashes; ids, users, sessions and times left out."""
    lines = text.splitlines()
    dashes = next((number for number, line in enumerate(lines) if line.startswith("---")), None)
    if dashes is None:
        return [cell_shape(line) for line in lines]
    starts = [match.start() for match in re.finditer(r"-+", lines[dashes])]
    titles = cells_of(lines[dashes - 1], starts)
    shape: list[Any] = [cell_shape(line) for line in lines[: dashes + 1]]
    for line in lines[dashes + 1 :]:
        cells = zip(titles, cells_of(line, starts), strict=True)
        shape.append([title if title in VARYING else cell_shape(cell) for title, cell in cells])
    return shape


def cells_of(line: str, starts: list[int]) -> list[str]:
    """The text that begins at each of these columns, or above a right-aligned one, as its reader sees it."""
    return [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


VARYING = frozenset({"Job id", "Job ID", "Username", "User", "SessID"})


def cell_shape(cell: str) -> str:
    """Hosts and ids renamed, long numbers and times of day replaced."""
    cell = re.sub(r"\b\d+(\[\])?\.pbs-[abx]\b", "ID", cell.rstrip())
    cell = re.sub(r"\b\d+(,\d+)+\b", "n,n", plain(cell))
    return re.sub(r"(HOST)/\d+", r"\1/n", re.sub(r"\d\d:\d\d:\d\d", "TIME", cell))
