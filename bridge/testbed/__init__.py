"""A real control plane, real SSH servers and embedded PBS clusters on loopback: for `hpc-bridge demo` and the tests."""
