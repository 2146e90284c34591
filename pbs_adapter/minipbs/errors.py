"""PBS's own error numbers and texts. A command ends with the number modulo 256."""

from __future__ import annotations

UNKNOWN_JOB = 15001
PERMISSION = 15007
UNKNOWN_HOST = 15008
CANNOT_CONNECT = 15010
UNKNOWN_SIGNAL = 15013
BAD_VALUE = 15014
BAD_RUN_ATTRIBUTE = 15015
BAD_STATE = 15016
UNKNOWN_QUEUE = 15018
NOT_ENABLED = 15021
BAD_USER = 15023
UNKNOWN_RESOURCE = 15035
LIMITS = 15036
NO_RERUN = 15038
ARRAY_TOO_BIG = 15107
JOB_RESOURCE = 15109
PLACE_WITHOUT_SELECT = 15111
DUPLICATE_RESOURCE = 15116
FINISHED = 15139
NO_HISTORY = 15140
ENTITY_LIMIT = 15142
HOOK_REJECT = 15175

TEXTS = {
    UNKNOWN_JOB: "Unknown Job Id",
    UNKNOWN_SIGNAL: "Unknown/illegal signal name",
    PERMISSION: "Unauthorized Request ",
    BAD_VALUE: "Illegal attribute or resource value",
    BAD_RUN_ATTRIBUTE: "Cannot modify attribute while job running ",
    BAD_STATE: "Request invalid for state of job",
    UNKNOWN_QUEUE: "Unknown queue",
    NOT_ENABLED: "Queue is not enabled",
    BAD_USER: "Bad UID for job execution",
    LIMITS: "Job violates queue and/or server resource limits",
    NO_RERUN: "job is not rerunnable",
    ARRAY_TOO_BIG: "Array job exceeds server or queue size limit",
    PLACE_WITHOUT_SELECT: 'Cannot have "place" without "select"',
    FINISHED: "Job has finished",
    NO_HISTORY: "PBS is not configured to maintain job history",
}


class PbsError(Exception):
    """A request that the server refuses; `code` is PBS's number, the text is what the command prints."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text or TEXTS[code])
        self.code = code
        self.text = text or TEXTS[code]

    @property
    def exit_status(self) -> int:
        """What the shell sees."""
        return self.code % 256


class UsageError(Exception):
    """A command line that the command itself refuses: the text goes to stderr as it is."""

    def __init__(self, text: str, exit_status: int = 2) -> None:
        super().__init__(text)
        self.text = text
        self.exit_status = exit_status
