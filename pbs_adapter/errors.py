"""The adapter's own error tree, so that callers never see paramiko's, the helper's or PBS's.

What the caller does decides the class::

    AdapterError
    ├── Retry                 try the same again later; nothing is wrong with the request
    │   ├── Unreachable       no channel to the account (login node down, helper gone, authentication failed)
    │   ├── PbsUnavailable    the PBS server does not answer, or the budget of connections is used up
    │   ├── SiteFault         something of the site is broken, such as a submit hook: somebody there has to mend it
    │   └── Backlog           a job-count limit of the server, queue or user: wait until a job leaves
    ├── Permanent             never try the same again: PBS or the helper refused it, with a text for the user
    │   ├── Rejected          PBS refused the job (its own text in the message)
    │   └── Fenced            a newer leader has spoken to this account: this process must stop acting
    └── OutcomeUnknown        the connection was lost after the request left: look, do not repeat
"""

from __future__ import annotations


class AdapterError(Exception):
    """Base of all errors that `pbs_adapter` raises on purpose. `str(error)` is fit for a user."""


class Retry(AdapterError):
    """The same request may succeed later."""


class Unreachable(Retry):
    """There is no working channel to the account now."""


class PbsUnavailable(Retry):
    """The channel works, the PBS server does not answer (or the connection budget is used up)."""


class SiteFault(Retry):
    """The site's own program failed on the request (a hook threw): it passes when an admin has mended it."""


class Backlog(Retry):
    """A limit on the number of jobs is reached; it passes when other jobs end."""


class Permanent(AdapterError):
    """The request as it is will never be accepted."""


class Rejected(Permanent):
    """PBS refused the job; the message holds PBS's own words and exit status."""


class Fenced(Permanent):
    """The helper has seen a higher epoch: another agent leads now."""


class OutcomeUnknown(AdapterError):
    """The request left this machine and no answer came; it may or may not have been carried out."""
