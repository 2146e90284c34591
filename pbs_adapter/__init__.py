"""The PBS side of hpc-bridge: submit, watch and stop jobs on clusters reached over SSH. Knows no Kubernetes."""
