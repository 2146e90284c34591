"""Each cluster's connection, its latest reports and health, and the sweep for jobs that no pod owns any more."""
