"""Requests and streams over one persistent byte stream to the helper, and the supervisor that keeps it up.

`connection` is one live stream; `supervisor` makes a new one when it is lost; `outbox` decides what is sent next;
`failures` maps what the helper and the transport say into `pbs_adapter.errors`.
"""

from pbs_adapter.channel.calls import Reply
from pbs_adapter.channel.connection import Connection
from pbs_adapter.channel.supervisor import Pauses, Supervisor

__all__ = ["Connection", "Pauses", "Reply", "Supervisor"]
