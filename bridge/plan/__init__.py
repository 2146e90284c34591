"""From a pod's spec to a PBS job: what it needs, what cannot be honoured, and the files that run it. Pure, no I/O."""
