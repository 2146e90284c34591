"""Reads what an image says about itself that apptainer does not apply: the working directory of its OCI configuration.

A SIF file that was made from a Docker or OCI image holds that configuration as one of its data objects. Layout: a
header of 128 bytes, then descriptors of 585 bytes each (sylabs/sif, version 01, little endian). Anything unexpected
means "it says nothing": apptainer itself judges whether the file can be run.
"""

import json
import os
import struct
from typing import Optional

_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<i?IIIqq")
_DESCRIPTOR_SIZE = 585
_NAME_AT = 73  # after sizes, times, user and group
_JSON = 0x4006
_MOST = 1 << 20  # of an OCI configuration, and of descriptors times their size


def working_directory(image: str) -> Optional[str]:
    """WorkingDir of the image, absolute and normalized; None when it says none, as image directories never do."""
    try:
        with open(image, "rb") as file:
            header = _HEADER.unpack(file.read(_HEADER.size))
            count, start = header[8], header[9]
            if header[1] != b"SIF_MAGIC\0" or not 0 < count * _DESCRIPTOR_SIZE <= _MOST:
                return None
            file.seek(start)
            table = file.read(count * _DESCRIPTOR_SIZE)
            for at in range(0, len(table) - _DESCRIPTOR_SIZE + 1, _DESCRIPTOR_SIZE):
                kind, used, _, _, _, offset, size = _DESCRIPTOR.unpack_from(table, at)
                name = table[at + _NAME_AT : at + _NAME_AT + 128].rstrip(b"\0")
                if used and kind == _JSON and name == b"oci-config.json" and 0 < size <= _MOST:
                    file.seek(offset)
                    path = json.loads(file.read(size).decode("utf-8")).get("WorkingDir")
                    usable = isinstance(path, str) and path.startswith("/") and path.isprintable()
                    return os.path.normpath(path) if usable else None
    except (OSError, ValueError, struct.error, AttributeError, OverflowError):
        pass
    return None
