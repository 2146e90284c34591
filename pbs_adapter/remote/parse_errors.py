"""What a failed PBS command means for its caller, from its exit status and what it wrote to standard error.

Commands exit with PBS's error number modulo 256, so numbers collide with the commands' own exits 1 to 5 and, at 255,
with ssh's. The text is therefore asked first. For qsub anything that is not known to have happened before the job was
committed is OUTCOME_UNKNOWN: look the job up by its name before trying again.
"""

import enum
import re
from typing import Optional, Tuple

_JOB_ID = re.compile(r"\d{1,18}(\[\d*\])?\.[A-Za-z0-9_.-]{1,255}", re.ASCII)


class ErrorClass(enum.Enum):
    """By what the caller does next."""

    OK = "ok"
    #: Try again later: server or host busy, or going up or down. Nothing has happened.
    RETRY = "retry"
    #: Will fail again: show the text to whoever can change the request.
    PERMANENT = "permanent"
    #: The server knows no such job (any more; with history off a finished job looks the same).
    UNKNOWN_JOB = "unknown-job"
    #: The job has ended and is in the history: ask with -x; for qdel this is success.
    FINISHED = "finished"
    #: A limit on jobs or resources of the user, project, queue or server: wait for room.
    LIMIT = "limit"
    #: The site's own fault, as a submit hook that throws: nobody's request is wrong, somebody has to mend it.
    SITE = "site"
    #: The id is one of a server that this host does not know: nothing can be asked or done about the job here.
    ELSEWHERE = "elsewhere"
    #: qsub may or may not have made a job.
    OUTCOME_UNKNOWN = "outcome-unknown"


_RETRY, _PERMANENT, _LIMIT = ErrorClass.RETRY, ErrorClass.PERMANENT, ErrorClass.LIMIT

#: Standard error, first match wins; the texts are those of PBS's pbs_messages.c and its commands.
_TEXTS = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"Failed to recv data from background qsub", ErrorClass.OUTCOME_UNKNOWN),
        (r"hook .*(encountered an? |got an alarm|runtime error)|Please inform Admin", ErrorClass.SITE),
        (r"illegally formed job identifier", ErrorClass.ELSEWHERE),
        (r"Unknown Job Id", ErrorClass.UNKNOWN_JOB),
        (r"Job has finished|Request invalid for finished array subjob|History job", ErrorClass.FINISHED),
        (r"would exceed .*limit|Maximum number of jobs", _LIMIT),
        (r"all reserved ports in use|cannot connect to server|Connection refused|Unknown Host", _RETRY),
        (r"No free connections|connection table full|Server shutting down|Failed to save job", _RETRY),
        (r"temporarily unavailable|try again|out of memory|Failed to load configuration|busy", _RETRY),
        (r"Request invalid for state of job|already in exit state|Delete already in progress", _RETRY),
        (r"illegal -|illegally formed|usage:|name is too long|not a file|No such file|cannot be used", _PERMANENT),
        (r"Unknown queue|Unauthorized Request|Unknown resource|Illegal attribute|violates queue", _PERMANENT),
        (
            r"Queue is not enabled|Bad UID|Array job exceeds|rejected by all possible|hook rejected|Invalid Account",
            _PERMANENT,
        ),
    )
)

#: PBS's error numbers by meaning (pbs_error.h), compared modulo 256.
_RETRY_NUMBERS: Tuple[int, ...] = (
    15008,
    15010,
    15016,
    15019,
    15020,
    15027,
    15033,
    15034,
    15044,
    15050,
    15060,
    15085,
    15099,
)
_RETRY_NUMBERS += (15117, 15161, 15174, 15208)
_PERMANENT_NUMBERS: Tuple[int, ...] = (
    15002,
    15003,
    15004,
    15007,
    15013,
    15014,
    15018,
    15022,
    15023,
    15024,
    15029,
    15032,
    15035,
    15036,
)
_PERMANENT_NUMBERS += (15037, 15038, 15039, 15042, 15045, 15048, 15049, 15054, 15055, 15107, 15108, 15109, 15110)
_PERMANENT_NUMBERS += (15021, 15111, 15116, 15136, 15144, 15155, 15156, 15162, 15163, 15165, 15169, 15172, 15173, 15175)
_NUMBERS = {number % 256: ErrorClass.RETRY for number in _RETRY_NUMBERS}
_NUMBERS.update({number % 256: ErrorClass.PERMANENT for number in _PERMANENT_NUMBERS})
_NUMBERS.update({number % 256: ErrorClass.LIMIT for number in (15046, 15142, 15143)})
_NUMBERS.update({number % 256: ErrorClass.UNKNOWN_JOB for number in (15001, 15052)})
_NUMBERS.update({number % 256: ErrorClass.FINISHED for number in (15139, 15158, 15159)})
_NUMBERS[2] = ErrorClass.PERMANENT  # the commands' own: wrong usage

#: Exits of qsub that do not say whether the server had the job already: its own 1 and -1, "system error" (also used
#: when the connection breaks half way), internal error, "job exists" (a repeated commit), protocol error.
_UNCLEAR_QSUB = frozenset([1, 255] + [number % 256 for number in (15009, 15010, 15011, 15031)])


def classify_error(command: str, exit_status: Optional[int], stderr: str) -> ErrorClass:
    """The class of one run of `command` ("qsub", "qstat", "qdel", …; a path is fine).

    `exit_status` None means that it was given up after a time limit, negative that a signal ended it, as in subprocess.
    For several ids in one command PBS reports the last failure only: ask about one id, or read stderr line by line.
    """
    if exit_status == 0:
        return ErrorClass.OK
    qsub = command.rsplit("/", 1)[-1] == "qsub"
    if exit_status is None or exit_status < 0:
        return ErrorClass.OUTCOME_UNKNOWN if qsub else ErrorClass.RETRY
    for pattern, kind in _TEXTS:
        if pattern.search(stderr):
            return kind
    number = exit_status % 256
    if qsub and number in _UNCLEAR_QSUB:
        return ErrorClass.OUTCOME_UNKNOWN
    return _NUMBERS.get(number, ErrorClass.OUTCOME_UNKNOWN if qsub else ErrorClass.RETRY)


def error_text(stderr: str) -> str:
    """The one line of `stderr` to show to people, without the command's name; at most 300 characters."""
    lines = [line.strip() for line in stderr.split("\n") if line.strip()]
    named = [line for line in lines if re.match(r"(?:q[a-z]+|pbs[a-z_]*): ", line)]
    text = (named or lines or [""])[0]
    return re.sub(r"^(?:q[a-z]+|pbs[a-z_]*): ", "", text)[:300]


def is_job_id(text: str) -> bool:
    """Whether the text is what qsub prints, and safe to give to a command."""
    return _JOB_ID.fullmatch(text) is not None


def job_id_in(text: str) -> str:
    """The id in what qsub printed, with whatever a wrapper says around it; empty when that is not clear.

    >>> job_id_in("--> Checking...\\n12.alpha\\nYour project has 19 % left.\\n")
    '12.alpha'
    >>> job_id_in("12.alpha\\n13.alpha\\n"), job_id_in("like job 12.alpha")
    ('', '')
    """
    found = {line.strip() for line in text.splitlines() if is_job_id(line.strip())}
    return found.pop() if len(found) == 1 else ""
