"""All that understands PBS's output, under one name: pure functions from text to data, in Python 3.6.

The helper on the login node and the bridge both import this module; the parts behind it (`parse_*`) import only each
other. Parsers of jobs never raise, the others raise ParseError and nothing else, whatever bytes they are given.

    values   sizes, durations, times, select, exec_vnode, limits      json     the JSON that is not always JSON
    jobs     qstat -f                                                  table    qstat -a / -u USER
    cluster  qstat -Q -f, pbsnodes -av, qstat -B -f                    errors   exit status and stderr
"""

from .parse_cluster import (
    Limits,
    Queue,
    Server,
    Vnode,
    group_by_host,
    parse_nodes,
    parse_queues,
    parse_server,
)
from .parse_errors import ErrorClass, classify_error, error_text, is_job_id, job_id_in
from .parse_jobs import Job, ParsedJobs, parse_jobs, parse_jobs_text
from .parse_table import TableRow, iter_job_table, parse_job_table
from .parse_values import (
    Chunk,
    Limit,
    ParseError,
    Value,
    VnodePiece,
    limit_for_user,
    parse_duration,
    parse_exec_vnode,
    parse_limits,
    parse_pbs_time,
    parse_resource,
    parse_select,
    parse_size,
)

__all__ = [
    "Chunk",
    "ErrorClass",
    "Job",
    "Limit",
    "Limits",
    "ParseError",
    "ParsedJobs",
    "Queue",
    "Server",
    "TableRow",
    "Value",
    "Vnode",
    "VnodePiece",
    "classify_error",
    "error_text",
    "group_by_host",
    "is_job_id",
    "iter_job_table",
    "job_id_in",
    "limit_for_user",
    "parse_duration",
    "parse_exec_vnode",
    "parse_job_table",
    "parse_jobs",
    "parse_jobs_text",
    "parse_limits",
    "parse_nodes",
    "parse_pbs_time",
    "parse_queues",
    "parse_resource",
    "parse_select",
    "parse_server",
    "parse_size",
]
