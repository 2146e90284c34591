"""The Kubernetes side of hpc-bridge: virtual nodes whose pods run as OpenPBS jobs."""
