"""minipbs: an embedded PBS for the demo and the tests, held to recordings of two real OpenPBS versions.

It stands in for a cluster: commands on a login host's PATH, a server, and jobs that run as local processes of the
submitting user. It imports nothing of the rest of the project, and what it needs at run time is copied to a prefix.
"""

from .config import Config, Host, Queue
from .control import Server
from .install import install

__all__ = ["Config", "Host", "Queue", "Server", "install"]
