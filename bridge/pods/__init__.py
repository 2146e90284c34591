"""The life of bound pods: what to do next (pure), what their status is (pure), and the loop that does it."""
