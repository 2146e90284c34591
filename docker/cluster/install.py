"""Installs the embedded PBS of the cluster image: two hosts of eight cores, one with two NUMA domains."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from pbs_adapter.minipbs import Config, Host, install

GIB = 1 << 30
HOSTS = (Host("cluster-n1", 8, 32 * GIB, numa=2), Host("cluster-n2", 8, 32 * GIB))

install(Path(sys.argv[1]), Config(server="cluster", hosts=HOSTS, scheduler_iteration=2.0))
