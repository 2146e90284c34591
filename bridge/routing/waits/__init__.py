"""How long a job would wait in a queue: quantiles learnt from what each cluster's queues have been seen to do.

Pure: no input or output, no clock of its own. `docs/explanation/waits.md` says how it works and what it cannot know.
"""

from bridge.routing.waits.model import WaitModel
from bridge.routing.waits.shapes import Shape, Wait

__all__ = ["Shape", "Wait", "WaitModel"]
