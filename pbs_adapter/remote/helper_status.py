"""podrun's status.json, which the pod's own processes could have forged: read without trust, bounded, and reduced."""

import json
import math
from typing import Any, Dict, Optional, Tuple

from . import helper_files as files
from .status_shape import reduce_status

LIMIT = 256 * 1024
_MAX_DIGITS = 18


def read_status(pod: int, uid: str) -> Tuple[Optional[Dict[str, Any]], str]:
    """(status, problem) of the pod directory open as `pod`: (None, "") when there is none yet."""
    try:
        text = files.read_bounded("status.json", pod, LIMIT)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, "status.json: {}".format(error.strerror)
    return parse_status(text, uid)


def parse_status(text: bytes, uid: str) -> Tuple[Optional[Dict[str, Any]], str]:
    """(status, "") or (None, what is wrong); see `status_shape`."""
    try:
        status = json.loads(text.decode("utf-8"), parse_constant=_refuse, parse_int=_integer, parse_float=_float)
    except (ValueError, RecursionError) as error:
        return None, "status.json is not JSON: {}".format(str(error)[:200])
    return reduce_status(status, uid)


def _refuse(name: str) -> None:
    raise ValueError("{} is not JSON".format(name))


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number of {} digits".format(len(text)))
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number that is too large")
    return number
