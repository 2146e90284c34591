"""What the agent asks of a pod that runs, left in the pod directory: stop.json, and limits.json for a changed limit.

Both are looked for again and again. The pod's own processes could have written them, so nonsense changes nothing; that
somebody wants the pod stopped is believed even of a stop.json that makes no sense.
"""

import json
import math
from typing import Any, Optional

from . import podrun_files as files
from .podrun_spec import MINIMUM_GRACE

_LARGEST = 64 * 1024
_LONGEST = 2**31 - 1  # Kubernetes' own bound of activeDeadlineSeconds


def stop_grace(directory: str, default: float) -> Optional[float]:
    """Grace period of stop.json, `default` when it says none, None without the file. Never below MINIMUM_GRACE."""
    try:
        document = _document(directory, "stop.json")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError):
        return default
    grace = document.get("grace") if isinstance(document, dict) else None
    known = isinstance(grace, (int, float)) and not isinstance(grace, bool) and math.isfinite(grace)
    return max(MINIMUM_GRACE, float(grace)) if known and grace is not None else default


def deadline(directory: str, default: Optional[float]) -> Optional[float]:
    """activeDeadlineSeconds of limits.json (version 1); `default` without one that makes sense."""
    try:
        document = _document(directory, "limits.json")
    except (OSError, ValueError, RecursionError):
        return default
    if not isinstance(document, dict) or document.get("version") != 1:
        return default
    seconds = document.get("activeDeadlineSeconds")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not 1 <= seconds <= _LONGEST:
        return default
    return float(seconds)


def _document(directory: str, name: str) -> Any:
    return json.loads(files.read_bounded(directory, name, _LARGEST).decode("utf-8"))
